"""Motion blur as ImageMagick makes it, which the authors used for `motion_blur` and for falling snow.

ImageMagick's MotionBlurImage smears an image to one side: a pixel becomes the mean of the pixels on a line that starts
at it, 2 radius + 1 whole-pixel steps long, weighted by one half of a Gaussian. Beyond the border the edge pixel is
repeated. It works in 16 bits (its usual build): the mean is rounded there, and truncated to 8 bits when the PNG file is
written through which the authors took the result.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lmr.data.corruptions.array_types import Floats


def smear(image: npt.NDArray[np.uint8], radius: float, sigma: float, degrees: float) -> npt.NDArray[np.uint8]:
    """Blur one image [H, W] or [H, W, C] along `degrees`: 0 takes from the right, 90 from below."""
    height, width = image.shape[:2]
    weights, steps = trace_line(radius, sigma, degrees)
    reach = int(np.abs(steps).max())
    around = [(reach, reach), (reach, reach), *[(0, 0)] * (image.ndim - 2)]
    padded = np.pad(image, around, mode="edge").astype(np.float64)
    total = np.zeros(image.shape)
    for weight, (down, right) in zip(weights, steps + reach, strict=True):
        total += weight * padded[down : down + height, right : right + width]
    wide = (total * 257 + 0.5).astype(np.int64)  # 8 bits to 16 is times 257
    return (wide // 257).astype(np.uint8)


def trace_line(radius: float, sigma: float, degrees: float) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The weights [K], sum 1, and the whole-pixel steps (down, right) [K, 2] of the line, K = 2 ceil(radius) + 1."""
    distance = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(distance**2) / (2.0 * sigma**2))
    angle = math.radians(degrees)
    direction = np.array([math.sin(angle), math.cos(angle)])
    steps = np.ceil(distance[:, None] * direction - 0.5).astype(np.int64)  # to the nearest, halves towards minus
    return weights / weights.sum(), steps
