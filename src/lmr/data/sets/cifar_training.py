"""The training sets of CIFAR-10 and CIFAR-100, which the photo model is trained on and nothing is measured on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lmr.core.errors import LmrError
from lmr.data.sets.cifar_archives import Arrays, read_archive
from lmr.data.sets.dataset import describe_missing

COUNT = 50_000

# The files of a training set under the root: as `lmr fetch` brings it, or as one archive of arrays.
_LAYOUTS: dict[int, tuple[tuple[str, ...], ...]] = {
    10: (tuple(f"cifar-10-batches-py/data_batch_{k}" for k in range(1, 6)), ("cifar10_train.npz",)),
    100: (("cifar-100-python/train",), ("cifar100_train.npz",)),
}


def read_training_set(classes: int, root: Path) -> Arrays:
    """The 50,000 training images and labels. Raises LmrError with the command that gets them."""
    for layout in _LAYOUTS[classes]:
        if all((root / file).is_file() for file in layout):
            parts = [read_archive(root / file, classes) for file in layout]
            images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            if len(images) != COUNT:
                raise LmrError(f"Expected {COUNT} training images in {str(root / layout[0])!r}, got {len(images)}.")
            return images, labels
    places = [layout[0] for layout in _LAYOUTS[classes]]
    raise describe_missing(
        f"cifar{classes}", root, places, "Training needs the training images, not only the test set."
    )
