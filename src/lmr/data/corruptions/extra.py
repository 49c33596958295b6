"""The four extra corruptions: speckle noise, Gaussian blur, drops on the lens, changed saturation."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]

from lmr.data.corruptions.blur import gaussian_blur as gaussian_blur
from lmr.data.corruptions.noise import Floats, Generators, ImageBatch, draw_normals
from lmr.data.corruptions.weather import join_colour, split_colour

Plane = npt.NDArray[np.float32]

_WATER = np.array([175, 238, 238], np.float32) / np.float32(255)  # pale turquoise
_MUD = np.array([63, 42, 20], np.float32) / np.float32(255)  # brown
_EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)  # light from the upper left


def speckle_noise(images: ImageBatch, generators: Generators, std: float) -> Floats:
    """Add noise whose spread grows with the brightness, like the interference of waves."""
    x = images / 255.0
    return x + x * (std * draw_normals(images, generators))


def spatter(
    images: ImageBatch,
    generators: Generators,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    is_mud: float,
) -> Plane:
    """Put drops on the lens, water at severities 1 to 3 and mud at 4 and 5.

    Smoothed noise above a threshold is liquid; `strength` is the opacity of water or the softness of the edge of mud.
    """
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
    """Return the share of each pixel that mud covers, [H, W]: at least 0.8, or 0."""
    cover: Plane = gaussian_filter((liquid > threshold).astype(np.float32), softness, mode="nearest", truncate=4.0)
    cover[cover < 0.8] = 0
    return cover


def _shade_water(liquid: Floats, opacity: float) -> Plane:
    """Return the light that water adds to each pixel, [H, W]: brightest near the edges of drops that face the light."""
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


def saturate(images: ImageBatch, generators: Generators, factor: float, amount: float) -> Floats:
    """Change the saturation linearly: towards grey at severities 1 and 2, towards pure colours from 3 on."""
    hue, saturation, value = split_colour(images / 255.0)
    return join_colour(hue, np.clip(saturation * factor + amount, 0, 1), value)
