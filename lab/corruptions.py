"""The contact sheet of ``lmr corruptions``: one image under every corruption at every severity."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from lmr.core.errors import LmrError
from lmr.data.corruptions.apply import corrupt
from lmr.data.corruptions.constants import CORRUPTIONS, EXTRA
from lmr.images.image_files import open_image

SIZES = {"imagenet": 224, "cifar": 32}
_CELL = 112  # pixels a side of an image on the sheet
_GAP = 4
_LABEL = 132  # width of the names
_HEAD = 22  # height of the line of severities
_INK, _PAPER = (30, 30, 30), (255, 255, 255)


def draw_sheet(
    image: npt.NDArray[np.uint8], *, constants: str = "imagenet", seed: int = 0, columns: int = 2
) -> Image.Image:
    """All corruptions of one uint8 image [H, W, 3], in the benchmark's order down each column, the clean image last."""
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
        from matplotlib import get_data_path

        image = open_image(Path(get_data_path(), "sample_data", "grace_hopper.jpg"))
        image = image.crop((56, 20, 456, 420))
    else:
        image = open_image(Path(path))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image)


def write_sheet(
    out: str | os.PathLike[str],
    image: str | os.PathLike[str] | None = None,
    *,
    constants: str = "imagenet",
    seed: int = 0,
) -> None:
    """Write the contact sheet of an image file as a PNG file; without one, of the portrait."""
    sheet = draw_sheet(prepare_image(image, SIZES[constants]), constants=constants, seed=seed)
    try:
        sheet.quantize(256).save(out, "PNG", optimize=True)
    except OSError as error:
        raise LmrError(f"Cannot write {os.fspath(out)!r}: {error.strerror or error}.") from error
