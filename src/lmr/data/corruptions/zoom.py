"""Enlarge the middle of images by linear interpolation, and crop them to their size."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lmr.data.corruptions.array_types import Floats

Places = npt.NDArray[np.int64]


def enlarge_middle(x: Floats, factor: float) -> Floats:
    """Zoom into [H, W, K] by `factor` >= 1; images and channels side by side in K make it fast."""
    return _interpolate(_interpolate(x, 0, factor), 1, factor)


def _interpolate(x: Floats, axis: int, factor: float) -> Floats:
    low, high, part = _place_pixels(x.shape[axis], factor)
    part = np.expand_dims(part, [other for other in range(x.ndim) if other != axis])
    near, far = x.take(low, axis), x.take(high, axis)
    near *= 1 - part
    far *= part
    near += far
    return near


def _place_pixels(length: int, factor: float) -> tuple[Places, Places, Floats]:
    """For each pixel of a line: the two source pixels it lies between and how far towards the second it lies.

    The crop and its enlarged length are rounded to whole pixels first and their end pixels coincide, as in
    scipy.ndimage.zoom, which the authors used; hence the true factor is near `factor`, not equal to it.
    """
    crop = math.ceil(length / factor)
    large = round(crop * factor)
    step = (crop - 1) / (large - 1) if large > 1 else 0.0
    place = np.minimum(np.arange(length) + (large - length) // 2, large - 1) * step
    low = np.minimum(place.astype(np.int64), max(crop - 2, 0))
    first = (length - crop) // 2
    return first + low, first + np.minimum(low + 1, crop - 1), place - low
