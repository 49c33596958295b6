"""Blur: a lens out of focus, frosted glass, a moving camera, zooming during the exposure."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]

from lmr.data.corruptions.noise import Floats, Generators, ImageBatch


def gaussian_blur(images: ImageBatch, generators: Generators, sigma: float) -> Floats:
    """Blur by a Gaussian; edge pixels are repeated beyond the border."""
    blurred: Floats = gaussian_filter(images / 255.0, (0, sigma, sigma, 0), mode="nearest", truncate=4.0)
    return blurred


def defocus_blur(images: ImageBatch, generators: Generators, radius: float, alias_blur: float) -> Floats:
    """Turn every point into a small disk, like a lens out of focus; borders are mirrored without the edge pixel."""
    kernel = make_disk(radius, alias_blur)
    return np.stack([cv2.filter2D(image / 255.0, -1, kernel) for image in images])


def make_disk(radius: float, alias_blur: float) -> npt.NDArray[np.float32]:
    """Return a disk [K, K] of sum 1, K odd, whose jagged edge is softened by a small Gaussian of sigma `alias_blur`.

    A radius of 8 or more reaches the border of the authors' grid, where the softening mirrors: the sum becomes 1.01.
    """
    reach, softened = (8, 3) if radius <= 8 else (int(radius), 5)
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    return np.asarray(cv2.GaussianBlur(disk, (softened, softened), alias_blur), np.float32)


def glass_blur(images: ImageBatch, generators: Generators, sigma: float, reach: float, rounds: float) -> Floats:
    """Blur, replace every pixel by a pixel nearby, and blur again.

    The authors' line reads as an exchange of two pixels. But its right side holds views of the image, not copies:
    the second pixel gets back its own value. The published images contain such copies, hence so do these. The walk
    goes from the lower right to the upper left, and offsets never reach +`reach`.
    """
    soft = (gaussian_blur(images, generators, sigma) * 255).astype(np.uint8)
    count, height, width, _ = soft.shape
    shuffled = np.empty_like(soft)
    for k in range(count):
        sources = _shuffle_pixels(height, width, int(reach), int(rounds), generators[k])
        shuffled[k] = soft[k].reshape(-1, 3)[sources].reshape(height, width, 3)
    return gaussian_blur(shuffled, generators, sigma)


def _shuffle_pixels(
    height: int, width: int, reach: int, rounds: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return the flat index of the source of every pixel: [H W]."""
    rows = np.arange(height - reach, reach, -1)
    columns = np.arange(width - reach, reach, -1)
    sources = np.arange(height * width)
    if not (len(rows) and len(columns)):
        return sources
    places = (rows[:, None] * width + columns).ravel()
    moves = generator.integers(-reach, reach, (rounds, 2, len(places)))
    for down, right in moves:
        givers = places + down * width + right
        if reach == 1:  # a giver is never a pixel that the walk has passed: all at once is the same as one by one
            sources[places] = sources[givers]
        else:
            walked = sources.tolist()
            for place, giver in zip(places.tolist(), givers.tolist(), strict=True):
                walked[place] = walked[giver]
            sources = np.array(walked)
    return sources


def motion_blur(images: ImageBatch, generators: Generators, radius: float, sigma: float) -> ImageBatch:
    """Smear along a line at most 45 degrees from the horizontal."""
    angles = [generator.uniform(-45, 45) for generator in generators]
    return np.stack([smear(image, radius, sigma, angle) for image, angle in zip(images, angles, strict=True)])


def smear(image: npt.NDArray[np.uint8], radius: float, sigma: float, degrees: float) -> npt.NDArray[np.uint8]:
    """Blur one image [H, W] or [H, W, C] along `degrees` (0 takes from the right, 90 from below), like ImageMagick.

    Its MotionBlurImage, which the authors used, smears to one side: a pixel becomes the mean of the pixels on a line
    that starts at it, 2 radius + 1 whole-pixel steps long, weighted by one half of a Gaussian. Beyond the border the
    edge pixel is repeated. It works in 16 bits (its usual build): the mean is rounded there, and truncated to 8 bits
    when the result is written to the PNG file from which the authors read it.
    """
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
    """Return the weights [K] of sum 1 and the whole-pixel steps (down, right) [K, 2]; K = 2 ceil(radius) + 1."""
    distance = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(distance**2) / (2.0 * sigma**2))
    angle = math.radians(degrees)
    direction = np.array([math.sin(angle), math.cos(angle)])
    steps = np.ceil(distance[:, None] * direction - 0.5).astype(np.int64)  # to the nearest, halves towards minus
    return weights / weights.sum(), steps


def zoom_blur(images: ImageBatch, generators: Generators, stop: float, step: float) -> npt.NDArray[np.float32]:
    """Average the image and its enlargements by the factors 1, 1 + step, ... below `stop`, in 32 bits."""
    count, height, width, channels = images.shape
    x = (images / 255.0).astype(np.float32).transpose(1, 2, 0, 3).reshape(height, width, count * channels)
    wide = x.astype(np.float64)
    total = np.zeros_like(x)
    factors = np.arange(1, stop, step)
    for factor in factors:
        total += enlarge_centre(wide, factor).astype(np.float32)
    mean: npt.NDArray[np.float32] = (x + total) / np.float32(len(factors) + 1)
    return mean.reshape(height, width, count, channels).transpose(2, 0, 1, 3)


def enlarge_centre(x: Floats, factor: float) -> Floats:
    """Zoom into [H, W, K] by `factor` >= 1, linearly interpolated; K holds images and channels side by side."""
    return _enlarge_axis(_enlarge_axis(x, 0, factor), 1, factor)


def _enlarge_axis(x: Floats, axis: int, factor: float) -> Floats:
    """Interpolate along one axis.

    The crop and its enlarged length are rounded to whole pixels first and their end pixels coincide, as in
    scipy.ndimage.zoom, which the authors used; hence the true factor is near `factor`, not equal to it.
    """
    length = x.shape[axis]
    crop = math.ceil(length / factor)
    large = round(crop * factor)
    step = (crop - 1) / (large - 1) if large > 1 else 0.0
    place = np.minimum(np.arange(length) + (large - length) // 2, large - 1) * step
    low = np.minimum(place.astype(np.int64), max(crop - 2, 0))
    first = (length - crop) // 2
    part = np.expand_dims(place - low, [other for other in range(x.ndim) if other != axis])
    near: Floats
    far: Floats
    near, far = x.take(first + low, axis), x.take(first + np.minimum(low + 1, crop - 1), axis)
    near *= 1 - part
    far *= part
    near += far
    return near
