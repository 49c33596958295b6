"""The photographs that come with the package: 2,000 images of the test set of CIFAR-10, 200 of each class.

``assets/cifar10_2000.webp`` is one lossless sheet of 50 x 40 tiles of 32 x 32 pixels, row by row, in the order of the
test set; ``assets/cifar10_2000.json`` has their labels, their numbers in the test set, and their source.
``lab/photographs.py`` made both.
"""

from __future__ import annotations

import json
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmr.data.dataset import ArraySet, make_digest
from lmr.data.names import ASSETS, read_list

SHEET, FACTS = ASSETS / "cifar10_2000.webp", ASSETS / "cifar10_2000.json"
SIDE, COLUMNS = 32, 50


class Photographs(ArraySet):
    """The 2,000 images, read when they are first used (6 MB in memory)."""

    def __init__(self) -> None:
        self.name, self.classes = "photo", read_list("cifar10")
        facts = json.loads(FACTS.read_text("utf-8"))
        self._labels = np.asarray(facts["labels"], np.int64)
        self.numbers: tuple[int, ...] = tuple(facts["numbers"])  # of the images in the test set of CIFAR-10
        self.protocol = {"images": f"{len(self._labels)} images of the test set of CIFAR-10 that come with lmr"}

    @cached_property
    def _images(self) -> NDArray[np.uint8]:  # type: ignore[override]
        count = len(self._labels)
        with Image.open(SHEET) as file:
            sheet = np.asarray(file.convert("RGB"))
        tiles = sheet.reshape(count // COLUMNS, SIDE, COLUMNS, SIDE, 3).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(tiles.reshape(count, SIDE, SIDE, 3))

    @cached_property
    def digest(self) -> str:
        """The digest of every pixel and label, and of the numbers, which determine the noise of corrupted images."""
        return make_digest(super().digest, json.dumps(self.numbers))
