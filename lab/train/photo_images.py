"""The images that the photo model is trained on: photographs, cropped and flipped at random."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.data.catalogue import open_dataset
from lmr.data.cifar import read_training_set
from lmr.data.dataset import CLEAN
from lmr.data.names import read_list

# Mean and deviation of the pixels of CIFAR-10's training images, as in common use.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
_PAD = 3  # pixels a crop may be moved by


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
