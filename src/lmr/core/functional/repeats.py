"""Frames that repeat: is a frame like an earlier one of its camera, up to the noise of the camera's pixels?"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

GRID = 16  # cells in a row and in a column of a small copy
FLOOR = 0.015  # the smallest noise: one of 255 levels, in normalised images with a deviation near 0.26
_LARGEST = 1000.0  # of a cell
_PEAK = 5.0  # largest difference of a cell, in deviations: of 768 normal numbers the largest is near 3.3
_WHOLE = 1.2  # largest root mean square difference of all cells
_NORMAL = 1.4826  # the standard deviation of normal numbers by the median of their absolute values
_WITHIN = 0.75  # the variance that is left when the mean of four independent numbers is subtracted from each


def shrink(images: Tensor) -> Tensor:
    """Return small copies [B, 3, 16, 16] of images [B, 3, H, W] in half precision: the means of the cells of a grid.

    Images of other shapes are grey, with all but the last two axes averaged.
    """
    pixels = images.float().reshape(len(images), -1, *(1, *images.shape[1:])[-2:])
    if pixels.shape[1] != 3:
        pixels = pixels.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    cells: Tensor = F.adaptive_avg_pool2d(pixels, GRID)
    return cells.clamp(-_LARGEST, _LARGEST).half()


def measure_noise(difference: Tensor) -> Tensor:
    """Return the standard deviation [A] of the noise in differences [A, 3, 16, 16] of two small copies.

    It is taken from the differences within squares of four cells, which leaves out changes of the light, by their
    median, which leaves out objects.
    """
    half = GRID // 2
    squares = difference.reshape(len(difference), -1, half, 2, half, 2)
    within = (squares - squares.mean((3, 5), keepdim=True)).flatten(1)
    return within.abs().median(1).values * (_NORMAL / math.sqrt(_WITHIN))


def is_repeat(difference: Tensor, noise: Tensor) -> Tensor:
    """Return whether noise [A] explains the differences [A, 3, 16, 16]: in every cell, and in all together."""
    cells, noise = difference.flatten(1), noise.clamp(min=FLOOR)
    peak, whole = cells.abs().amax(1), cells.square().mean(1).sqrt()
    return (peak <= _PEAK * noise) & (whole <= _WHOLE * noise)


def measure_lead(logits: Tensor, labels: Tensor) -> Tensor:
    """Return by how much the logit of a class [B] is above the largest other one, for each image: [B]."""
    own = logits.gather(1, labels.unsqueeze(1))
    others = logits.scatter(1, labels.unsqueeze(1), -torch.inf)
    return own.squeeze(1) - others.amax(1)
