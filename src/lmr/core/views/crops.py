"""Random crops, resized to the whole image, and flips: the augmentation that most methods with views use.

The distribution is that of torchvision's RandomResizedCrop and RandomHorizontalFlip with their defaults, without
torchvision: an area of 8 % to 100 % of the image, a ratio of the sides from 3/4 to 4/3, ten attempts to fit it into
the image, bilinear interpolation, and a flip of every second view on average.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.placement import widen
from lmr.core.state import move_together

AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10


class Crops(NamedTuple):
    """Boxes in pixels, whole numbers in float64 [V], and which of them are flipped, bool [V]."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flipped: Tensor


def draw_crops(generator: torch.Generator, count: int, height: int, width: int) -> Crops:
    """``count`` boxes inside of an image of this size."""
    numbers = torch.rand(count, 2 * ATTEMPTS + 3, generator=generator, dtype=torch.float64)
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * numbers[:, :ATTEMPTS])
    lowest, highest = map(math.log, RATIO)
    ratio = (lowest + (highest - lowest) * numbers[:, ATTEMPTS : 2 * ATTEMPTS]).exp()
    wide, high = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (high > 0) & (high <= height)
    attempt = fits.to(torch.int8).argmax(1, keepdim=True)  # the first that fits
    found = fits.any(1)
    box_width = torch.where(found, wide.gather(1, attempt)[:, 0], min(width, round(height * RATIO[1])))
    box_height = torch.where(found, high.gather(1, attempt)[:, 0], min(height, round(width / RATIO[0])))
    top, left = numbers[:, -3] * (height - box_height + 1), numbers[:, -2] * (width - box_width + 1)
    top = torch.where(found, top.floor(), (height - box_height).div(2, rounding_mode="floor"))
    left = torch.where(found, left.floor(), (width - box_width).div(2, rounding_mode="floor"))
    return Crops(top, left, box_height, box_width, numbers[:, -1] < 0.5)


def place_crops(crops: Crops, image: Tensor) -> dict[str, Tensor]:
    """Return the points of the crops of an image, x [V, 1, W] and y [V, H, 1], as ``sample_grid`` takes them.

    A box is never larger than the image, so nothing shrinks and no filter against aliasing is needed. Values beyond the
    edge of a box do not enter: the points are kept inside it.
    """
    height, width = image.shape[-2:]
    across = _place_points(crops.left, crops.width, width)
    across = torch.where(crops.flipped.unsqueeze(1), across.flip(1), across).unsqueeze(1)
    return _scale_points(across, _place_points(crops.top, crops.height, height).unsqueeze(2), image)


def sample_bilinear(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Values of images [V, C, H, W] at the points (x, y), in pixels from the centre of the first: [V, C, h, w].

    ``x`` and ``y`` are broadcast to [V, h, w]. Points outside of the image have the value of its border. Images of half
    precision are sampled in float32, which can tell their pixels apart.
    """
    return sample_grid(images, **move_together(_scale_points(x, y, images), images.device))


def sample_grid(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return what ``sample_bilinear`` gives, at points from -1 to 1 that are on the device of the images."""
    grid = torch.stack(torch.broadcast_tensors(x, y), -1)  # type: ignore[no-untyped-call]
    wide = images.to(grid.dtype)
    return F.grid_sample(wide, grid, mode="bilinear", padding_mode="border", align_corners=False).to(images.dtype)


def _scale_points(x: Tensor, y: Tensor, like: Tensor) -> dict[str, Tensor]:
    """Return points in pixels as numbers from -1 to 1 over the sides of an image."""
    height, width = like.shape[-2:]
    wide = widen(like.dtype)
    return {"x": ((2 * x + 1) / width - 1).to(wide), "y": ((2 * y + 1) / height - 1).to(wide)}


def _place_points(first: Tensor, length: Tensor, size: int) -> Tensor:
    """Where the ``size`` points of a resized side lie in boxes that begin at ``first`` [V] and are ``length`` long."""
    steps = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    inside = steps * length.unsqueeze(1) - 0.5
    return first.unsqueeze(1) + inside.clamp(min=0).minimum(length.unsqueeze(1) - 1)
