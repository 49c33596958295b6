"""The images that the photo model is trained on: photographs, cropped and flipped at random."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.data.catalogue import open_dataset
from lmr.data.cifar import Arrays, read_archive
from lmr.data.dataset import CLEAN, describe_missing
from lmr.data.names import read_list

# Mean and deviation of the pixels of CIFAR-10's training images, as in common use.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
_PAD = 3  # pixels a crop may be moved by
TRAINING_COUNT = 50_000

# The files of a training set under the root: as `lmr fetch` unpacks it, or as one archive of arrays.
_TRAINING: dict[int, tuple[tuple[str, ...], ...]] = {
    10: (tuple(f"cifar-10-batches-py/data_batch_{k}" for k in range(1, 6)), ("cifar10_train.npz",)),
    100: (("cifar-100-python/train",), ("cifar100_train.npz",)),
}


@dataclass(frozen=True)
class TrainingImages:
    """uint8 images [N, 3, 32, 32] and the numbers of their names [N]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, held_out: int, seed: int) -> tuple[TrainingImages, TrainingImages]:
        """Return all but ``held_out`` random images, and these."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.pick(order[held_out:]), self.pick(order[:held_out])

    def pick(self, rows: Tensor) -> TrainingImages:
        """Return the images in these rows."""
        return TrainingImages(self.pixels[rows], self.labels[rows])


def read_training_images(root: Path) -> TrainingImages:
    """Read the training images of CIFAR-10, then those of CIFAR-100, whose labels follow those of CIFAR-10.

    A few training images equal a test image of one of the sets, pixel by pixel; they are left out.
    """
    images, labels = read_training_set(10, root)
    more, fine = read_training_set(100, root)
    pixels, numbers = np.concatenate([images, more]), np.concatenate([labels, fine + len(read_list("cifar10"))])
    tests = [open_dataset(name, root) for name in ("cifar10", "cifar100")]
    seen = {image.tobytes() for test in tests for image in test.read(CLEAN, 5, range(len(test.labels(CLEAN))))}
    new = [k for k, image in enumerate(pixels) if image.tobytes() not in seen]
    return TrainingImages(
        torch.from_numpy(pixels[new]).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(numbers[new])
    )


def normalise_pixels(pixels: Tensor) -> Tensor:
    """Convert uint8 [N, 3, H, W] to inputs of the model, channels last."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) * 255 for values in (MEAN, STD))
    return ((pixels.float() - mean) / std).contiguous(memory_format=torch.channels_last)


def augment(pixels: Tensor, random: torch.Generator) -> Tensor:
    """Pad by reflection, crop randomly to the old size, mirror half of the images, and normalise."""
    count, _, height, width = pixels.shape
    x = F.pad(normalise_pixels(pixels), (_PAD,) * 4, mode="reflect")
    down, right = torch.randint(2 * _PAD + 1, (2, count, 1), generator=random)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    mirrored = torch.rand(count, 1, generator=random) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    image = torch.arange(count)[:, None, None]
    moved = x.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)  # already channels last


def read_training_set(classes: int, root: Path) -> Arrays:
    """Return the 50,000 training images and labels, which only training uses. Raises LmrError."""
    for layout in _TRAINING[classes]:
        if all((root / file).is_file() for file in layout):
            parts = [read_archive(root / file, classes) for file in layout]
            images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            if len(images) != TRAINING_COUNT:
                raise LmrError(
                    f"Expected {TRAINING_COUNT} training images in {str(root / layout[0])!r}, got {len(images)}."
                )
            return images, labels
    places = [layout[0] for layout in _TRAINING[classes]]
    raise describe_missing(
        f"cifar{classes}", root, places, "Training needs the training images, not only the test set."
    )
