"""Draw a contact sheet: one image under each of the 19 corruptions at severities 1 to 5.

docs/corruptions.md shows the sheet: ``python -m lab.corruptions docs/corruptions.png``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from lab.command import build_parser, run_command
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.data.corruptions import CONSTANTS, CORRUPTIONS, EXTRA
from lmr.data.corruptions.apply import corrupt
from lmr.images.files import open_image

SIZES = {"imagenet": 224, "cifar": 32}
_CELL = 112  # pixels a side of an image on the sheet
_GAP = 4
_LABEL = 132  # width of the names
_HEAD = 22  # height of the line of severities
_INK, _PAPER = (30, 30, 30), (255, 255, 255)

DESCRIPTION = """\
Draw a contact sheet: one image under each of the 15 corruptions of CIFAR-C and ImageNet-C and the 4 extra ones, at
severities 1 to 5."""

EXAMPLES = """\
examples:
  python -m lab.corruptions sheet.png
  python -m lab.corruptions sheet.png --image cat.jpg --constants cifar"""


def draw_sheet(
    image: npt.NDArray[np.uint8], *, constants: str = "imagenet", seed: int = 0, columns: int = 2
) -> Image.Image:
    """Draw all corruptions of one uint8 image [H, W, 3] in the benchmark's order, and the clean image last."""
    names = (*CORRUPTIONS, *EXTRA, "clean")
    rows = -(-len(names) // columns)
    step = _CELL + _GAP
    width = _LABEL + 5 * step + _GAP
    sheet = Image.new("RGB", (columns * width, _HEAD + rows * step), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for column in range(columns):
        for severity in range(1, 6):
            centre = column * width + _LABEL + (severity - 1) * step + _CELL // 2
            draw.text((centre, _HEAD // 2), str(severity), _INK, font, "mm")
    for k, name in enumerate(names):
        left, top = k // rows * width, _HEAD + k % rows * step
        draw.text((left + _LABEL - 8, top + _CELL // 2), name.replace("_", " "), _INK, font, "rm")
        for severity in range(1, 2 if name == "clean" else 6):
            cell = image if name == "clean" else corrupt(image, name, severity, seed=seed, constants=constants)
            sheet.paste(_fit(cell), (left + _LABEL + (severity - 1) * step, top))
    return sheet


def _fit(image: npt.NDArray[np.uint8]) -> Image.Image:
    enlarged = image.shape[0] < _CELL
    return Image.fromarray(image).resize((_CELL, _CELL), Image.Resampling.NEAREST if enlarged else Image.Resampling.BOX)


def prepare_image(path: str | os.PathLike[str] | None, size: int) -> npt.NDArray[np.uint8]:
    """Resize the shorter side to `size` and crop the middle; without a file, use a portrait from matplotlib.

    That is Grace Hopper's by the US Navy, 1984, in the public domain.
    """
    if path is None:
        require("matplotlib", "bench", "The portrait")
        from matplotlib import get_data_path

        image = open_image(Path(get_data_path(), "sample_data", "grace_hopper.jpg"))
        image = image.crop((56, 20, 456, 420))
    else:
        image = open_image(Path(path))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image)


def run(options: argparse.Namespace) -> None:
    """Write the contact sheet as a PNG file."""
    image = prepare_image(options.image, SIZES[options.constants])
    sheet = draw_sheet(image, constants=options.constants, seed=options.seed)
    try:
        sheet.quantize(256).save(options.out, "PNG", optimize=True)
    except OSError as error:
        raise LmrError(f"Cannot write {str(options.out)!r}: {error.strerror or error}.") from error
    print(f"Wrote {options.out}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.corruptions`` and return its exit code."""
    parser = build_parser("corruptions", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT.png", help="the PNG file to write")
    add("--image", type=Path, metavar="FILE", help="an image file (default: a portrait that comes with matplotlib)")
    add("--constants", choices=sorted(CONSTANTS), default="imagenet", help="the set whose constants are used; cifar "
        "draws the image with 32 pixels a side (default: %(default)s)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="seed of the random corruptions (default: %(default)s)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
