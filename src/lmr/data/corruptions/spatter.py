"""Drops on the lens: water at severities 1 to 3, mud at 4 and 5."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]

from lmr.data.corruptions.array_types import Floats, Generators, ImageBatch

Plane = npt.NDArray[np.float32]

_WATER = np.array([175, 238, 238], np.float32) / np.float32(255)  # pale turquoise
_MUD = np.array([63, 42, 20], np.float32) / np.float32(255)  # brown
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)  # light from the upper left


def add_spatter(
    images: ImageBatch,
    generators: Generators,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    is_mud: float,
) -> Plane:
    """Smoothed noise above a threshold is liquid; `strength` is the water's opacity or the softness of mud's edge."""
    spattered = np.empty(images.shape, np.float32)
    for k, generator in enumerate(generators):
        x = images[k].astype(np.float32) / np.float32(255)
        liquid: Floats = gaussian_filter(generator.normal(mean, std, x.shape[:2]), sigma, mode="nearest", truncate=4.0)
        liquid[liquid < threshold] = 0
        if is_mud:
            cover = _spread_mud(liquid, threshold, strength)[:, :, None]
            spattered[k] = x * (1 - cover) + _MUD * cover
        else:
            spattered[k] = x + _shade_water(liquid, strength)[:, :, None] * _WATER
    return spattered


def _spread_mud(liquid: Floats, threshold: float, softness: float) -> Plane:
    """How far mud covers each pixel, [H, W]: at least 0.8 or not at all."""
    cover: Plane = gaussian_filter((liquid > threshold).astype(np.float32), softness, mode="nearest", truncate=4.0)
    cover[cover < 0.8] = 0
    return cover


def _shade_water(liquid: Floats, opacity: float) -> Plane:
    """How much light water adds at each pixel, [H, W]: brightest near the edges of drops, on the side of the light."""
    depth = (liquid * 255).astype(np.uint8)
    far = cv2.distanceTransform(255 - cv2.Canny(depth, 50, 150), cv2.DIST_L2, 5)
    near = cv2.blur(np.minimum(far, np.float32(20)), (3, 3)).astype(np.uint8)
    relief = cv2.filter2D(cv2.equalizeHist(near), cv2.CV_8U, _EMBOSS)
    shade: Plane = depth.astype(np.float32) * cv2.blur(relief, (3, 3)).astype(np.float32)
    brightest = shade.max()
    if brightest == 0:  # no drop at all: nothing to scale
        return shade
    shade /= brightest
    shade *= np.float32(opacity)
    return shade
