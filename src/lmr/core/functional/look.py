"""How images look beside ordinary photographs: noisy, blurred, dark or washed out. No model is needed."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

SIDES = (32, 224)  # to which images are reduced; smaller ones than the first have no look
_LIGHT, _DARKEST, _NOISE, _GRADIENT, _SHARPNESS = range(5)  # the numbers
FEWEST = 8  # images from which something is said
# The 5 % and 95 % quantiles of the five numbers between ordinary photographs, for each side: `python -m lab.look`.
RANGES = {
    32: ((0.288, 0.689), (0.014, 0.303), (0.008, 0.036), (0.073, 0.192), (-0.397, -0.039)),
    224: ((0.265, 0.672), (0.005, 0.239), (0.004, 0.039), (0.046, 0.163), (-0.399, 0.060)),
}


def measure_look(pixels: Tensor) -> Tensor:
    """Return five numbers [B, 5] on images [B, 3, H, W] with values from 0 to 1; NaN for images that are too small.

    Of grey, reduced to a side of 32 or 224 pixels: the mean; the darkest 2 %; the noise (Immerkaer 1996); its gradient;
    and the logarithm of the gradient over that in squares of 2 x 2 pixels.
    """
    grey = pixels.float().mean(1)
    side = _choose_side(min(grey.shape[1:]))
    if not side:
        return grey.new_full((len(grey), 5), math.nan)
    if min(grey.shape[1:]) != side or grey.shape[1] != grey.shape[2]:
        grey = F.interpolate(grey.unsqueeze(1), (side, side), mode="bilinear", antialias=True).squeeze(1)
    flat = grey.flatten(1)
    dark = flat.kthvalue(max(1, round(0.02 * flat.shape[1])), dim=1).values
    kernel = grey.new_tensor([[1, -2, 1], [-2, 4, -2], [1, -2, 1]]).expand(1, 1, 3, 3)
    noise = F.conv2d(grey.unsqueeze(1), kernel).abs().mean((1, 2, 3)) * math.sqrt(math.pi / 2) / 6
    fine, coarse = _measure_gradient(grey), _measure_gradient(F.avg_pool2d(grey.unsqueeze(1), 2).squeeze(1))
    return torch.stack([grey.mean((1, 2)), dark, noise, fine, ((fine + 1e-4) / (coarse + 1e-4)).log()], 1)


def describe_look(numbers: Tensor, size: int) -> list[str]:
    """Return words for images of ``size`` pixels a side, from their numbers [n, 5]; none if they look ordinary.

    The median over the images is compared with the range of single photographs.
    """
    side = _choose_side(size)
    if len(numbers) < FEWEST or not side:
        return []
    values = numbers.median(0).values.tolist()
    low, high = zip(*RANGES[side], strict=True)
    blurred = values[_SHARPNESS] < low[_SHARPNESS]
    words = {
        "noisy": values[_NOISE] > high[_NOISE],
        "blurred": blurred,
        "dark": values[_LIGHT] < low[_LIGHT],
        "washed out": values[_DARKEST] > high[_DARKEST] or (values[_GRADIENT] < low[_GRADIENT] and not blurred),
    }
    return [word for word, holds in words.items() if holds]


def _choose_side(size: int) -> int:
    """Return the largest side to which images of ``size`` pixels a side are reduced, 0 if they are too small."""
    return max((side for side in SIDES if side <= size), default=0)


def _measure_gradient(grey: Tensor) -> Tensor:
    """Return the root of the mean square difference of neighbours in rows and columns [B]."""
    rows, columns = grey.diff(dim=2).square().mean((1, 2)), grey.diff(dim=1).square().mean((1, 2))
    return (rows + columns).sqrt()
