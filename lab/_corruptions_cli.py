"""``lmr corruptions``: the contact sheet of an image."""

from __future__ import annotations

import argparse
from pathlib import Path

from lmr.data.corruptions.constants import CONSTANTS

DESCRIPTION = """\
Draw a contact sheet: one image under each of the 15 corruptions of CIFAR-C and ImageNet-C and the 4 extra ones, at
severities 1 to 5."""

EXAMPLES = """\
examples:
  lmr corruptions sheet.png
  lmr corruptions sheet.png --image cat.jpg --constants cifar"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr corruptions``."""
    add = parser.add_argument
    add("out", type=Path, metavar="FILE.png", help="the PNG file to write")
    add("--image", type=Path, metavar="FILE", help="an image file (default: a portrait that comes with matplotlib)")
    add("--constants", choices=sorted(CONSTANTS), default="imagenet", help="the set whose constants are used; cifar "
        "draws the image with 32 pixels a side (default: %(default)s)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="seed of the random corruptions (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    """Write the contact sheet."""
    from lab.corruptions import write_sheet

    write_sheet(options.out, options.image, constants=options.constants, seed=options.seed)
    print(f"Wrote {options.out}.")
