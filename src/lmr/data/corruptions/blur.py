"""Blur: through a bad lens, through frosted glass, by a moving camera, by zooming during the exposure."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]

from lmr.data.corruptions.array_types import Floats, Generators, ImageBatch
from lmr.data.corruptions.motion import smear
from lmr.data.corruptions.zoom import enlarge_middle


def blur_by_gauss(images: ImageBatch, generators: Generators, sigma: float) -> Floats:
    """A Gaussian, edge pixels repeated beyond the border."""
    blurred: Floats = gaussian_filter(images / 255.0, (0, sigma, sigma, 0), mode="nearest", truncate=4.0)
    return blurred


def defocus(images: ImageBatch, generators: Generators, radius: float, alias_blur: float) -> Floats:
    """Every point becomes a small disk, as with a lens out of focus; borders are mirrored without the edge pixel."""
    kernel = make_disk(radius, alias_blur)
    return np.stack([cv2.filter2D(image / 255.0, -1, kernel) for image in images])


def make_disk(radius: float, alias_blur: float) -> npt.NDArray[np.float32]:
    """A disk of sum 1 whose jagged edge is softened by a small Gaussian of sigma `alias_blur` -> [K, K], K odd.

    A radius of 8 or more reaches the border of the authors' grid, where the softening mirrors: the sum becomes 1.01.
    """
    reach, softened = (8, 3) if radius <= 8 else (int(radius), 5)
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    return np.asarray(cv2.GaussianBlur(disk, (softened, softened), alias_blur), np.float32)


def blur_through_glass(images: ImageBatch, generators: Generators, sigma: float, reach: float, rounds: float) -> Floats:
    """Blur, replace every pixel by a pixel nearby, and blur again.

    The authors' line reads as an exchange of two pixels. But its right side holds views of the image, not copies:
    the second pixel gets back its own value. The published images are made of such copies, hence so are these. The walk
    goes from the lower right to the upper left, and offsets never reach +`reach`.
    """
    soft = (blur_by_gauss(images, generators, sigma) * 255).astype(np.uint8)
    count, height, width, _ = soft.shape
    mixed = np.empty_like(soft)
    for k in range(count):
        sources = _walk(height, width, int(reach), int(rounds), generators[k])
        mixed[k] = soft[k].reshape(-1, 3)[sources].reshape(height, width, 3)
    return blur_by_gauss(mixed, generators, sigma)


def _walk(height: int, width: int, reach: int, rounds: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Where each pixel's value comes from, flat: [H W]."""
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


def blur_by_motion(images: ImageBatch, generators: Generators, radius: float, sigma: float) -> ImageBatch:
    """Smear along a line at most 45 degrees from level."""
    angles = [generator.uniform(-45, 45) for generator in generators]
    return np.stack([smear(image, radius, sigma, angle) for image, angle in zip(images, angles, strict=True)])


def blur_by_zoom(images: ImageBatch, generators: Generators, stop: float, step: float) -> npt.NDArray[np.float32]:
    """The mean of the image and of its enlargements by the factors 1, 1 + step, ... below `stop`, in 32 bits."""
    count, height, width, channels = images.shape
    x = (images / 255.0).astype(np.float32).transpose(1, 2, 0, 3).reshape(height, width, count * channels)
    wide = x.astype(np.float64)
    total = np.zeros_like(x)
    factors = np.arange(1, stop, step)
    for factor in factors:
        total += enlarge_middle(wide, factor).astype(np.float32)
    mean: npt.NDArray[np.float32] = (x + total) / np.float32(len(factors) + 1)
    return mean.reshape(height, width, count, channels).transpose(2, 0, 1, 3)
