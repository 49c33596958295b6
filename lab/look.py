"""Measure how ordinary photographs look, and which corruptions ``lmr.core.functional.look`` names.

The photographs are those of a folder at 224 pixels, and at 32 pixels these and the photographs of the package. The
ranges are those of every second image. The words are then counted on the others, in folders of 32 images each.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lab.command import build_parser, run_command
from lmr.core.functional.look import describe_look, judge_look, measure_look
from lmr.data.corruptions.apply import corrupt
from lmr.data.corruptions.constants import CORRUPTIONS, EXTRA
from lmr.data.dataset import CLEAN
from lmr.data.photographs import Photographs
from lmr.images.files import list_images, open_image

DESCRIPTION = """\
Print the ranges of ordinary photographs that are in lmr/core/functional/look.py, from half of the images, and how many
folders of 32 of the other images get which word, clean and with each corruption."""
COUNT, FOLDER, QUANTILES = 1000, 32, (0.05, 0.95)

Pixels = NDArray[np.uint8]


def read_photographs(folder: Path) -> Pixels:
    """Return the photographs of a folder as [N, 224, 224, 3]."""
    images = [open_image(path, upright=False).resize((224, 224)) for path in list_images([folder])[:COUNT]]
    return np.stack([np.asarray(image) for image in images])


def shrink(images: Pixels) -> Pixels:
    """Return images reduced to 32 pixels a side, as the embedded model sees them."""
    return np.stack([np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BICUBIC)) for one in images])


def measure(images: Pixels) -> Tensor:
    """Return the numbers [N, 6] of images [N, H, W, 3]."""
    return torch.cat(
        [measure_look(torch.from_numpy(part).permute(0, 3, 1, 2) / 255) for part in np.array_split(images, 8)]
    )


def describe_ranges(numbers: Tensor) -> str:
    """Return the ranges as they stand in the package."""
    low, high = (torch.quantile(numbers[:, :5], q, dim=0).tolist() for q in QUANTILES)
    return ", ".join(f"({a:.3f}, {b:.3f})" for a, b in zip(low, high, strict=True))


def count_words(images: Pixels) -> str:
    """Return how many folders of these images get each word."""
    size, numbers = images.shape[1], measure(images)
    folders = [
        " and ".join(map(str, describe_look(judge_look(own, size), ordered=False))) or "ordinary"
        for own in torch.split(numbers, FOLDER)
        if len(own) == FOLDER
    ]
    return ", ".join(f"{word} {count}" for word, count in Counter(folders).most_common())


def run(options: argparse.Namespace) -> None:
    """Print both tables."""
    large = read_photographs(Path(options.photographs))
    small = np.stack(Photographs().read(CLEAN, 0, range(2 * COUNT)))
    sets = {
        "photographs, 224": (large, "imagenet"),
        "photographs, 32": (shrink(large), "cifar"),
        "CIFAR-10": (small, "cifar"),
    }
    own = {name: images[::2] for name, (images, _) in sets.items()}
    print(
        f"32: {describe_ranges(torch.cat([measure(own['photographs, 32']), measure(own['CIFAR-10'][: len(large)])]))}"
    )
    print(f"224: {describe_ranges(measure(own['photographs, 224']))}")
    for name, (images, constants) in sets.items():
        others = images[1::2]
        print(f"\n{name}: {count_words(others)}")
        for kind in (*CORRUPTIONS, *EXTRA):
            for severity in options.severities:
                changed = corrupt(others[: options.images], kind, severity, constants=constants)
                print(f"  {kind} {severity}: {count_words(changed)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = build_parser("look", DESCRIPTION)
    parser.add_argument("--photographs", required=True, metavar="FOLDER", help="photographs of 224 pixels a side")
    parser.add_argument(
        "--images", type=int, default=320, metavar="N", help="for each corruption (default: %(default)s)"
    )
    parser.add_argument("--severities", type=int, nargs="+", default=[3, 5], metavar="S", help="(default: 3 5)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
