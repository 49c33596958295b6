"""Enlarge the middle of pictures by straight lines between pixels, and cut them to the size they had."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lmr.data.corruptions.kinds import Floats

Places = npt.NDArray[np.int64]


def enlarge_middle(x: npt.NDArray[np.floating[Any]], factor: float) -> Floats:
    """Zoom into [N, H, W, C] by `factor` >= 1 -> float64 of the same shape."""
    low, high, part = _place_pixels(x.shape[1], factor)
    part = part[:, None, None]
    rows = x[:, low] * (1 - part) + x[:, high] * part
    low, high, part = _place_pixels(x.shape[2], factor)
    part = part[:, None]
    return rows[:, :, low] * (1 - part) + rows[:, :, high] * part


def _place_pixels(length: int, factor: float) -> tuple[Places, Places, Floats]:
    """For each pixel of a line: the two source pixels it lies between and how far towards the second it lies.

    The crop and its enlarged length are rounded to whole pixels first and their end pixels fall on each other, as in
    scipy.ndimage.zoom, which the authors used; hence the true factor is near `factor`, not equal to it.
    """
    crop = math.ceil(length / factor)
    large = round(crop * factor)
    step = (crop - 1) / (large - 1) if large > 1 else 0.0
    place = np.minimum(np.arange(length) + (large - length) // 2, large - 1) * step
    low = np.minimum(place.astype(np.int64), max(crop - 2, 0))
    first = (length - crop) // 2
    return first + low, first + np.minimum(low + 1, crop - 1), place - low
