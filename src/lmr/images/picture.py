"""Picture: a few numbers about the pixels of an image, by which a broken or moved camera is seen."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 128  # a larger image is measured at 128 to 255 pixels of its shorter side
VIEW = 16  # a view has as many blocks across and down
_LEAST = 1e-6  # of a variance


@dataclass(frozen=True, eq=False)
class Picture:
    """Statistics of the luminance, 0 to 255, of one image.

    ``roughness`` is 1 minus the correlation of neighbouring pixels, 1 for noise. ``sharpness`` is the log of the mean
    squared difference of neighbours over that of pixels four apart: near ln(1/16) for a blurred image, 0 for noise.
    Neither depends on contrast. ``detail`` is the log of the roughness of the view.
    """

    level: float  # the mean
    spread: float  # the standard deviation of the view
    roughness: float
    sharpness: float
    detail: float
    view: NDArray[np.float32]  # the means of blocks [VIEW, VIEW]
    digest: int  # of the measured pixels


def measure_picture(image: Image.Image) -> Picture:
    """Return the statistics of an image; a large one is measured on means of square blocks of its pixels."""
    factor = min(image.size) // SIDE
    small = image.reduce(factor) if factor > 1 else image
    grey = small.convert("L")
    view = np.asarray(grey.resize((VIEW, VIEW), Image.Resampling.BOX), np.float32)
    pixels = np.asarray(grey, np.float32)
    near, variance = _measure_change(pixels, 1), _measure_variance(view)
    return Picture(
        level=float(view.mean()),
        spread=math.sqrt(variance),
        roughness=near / (2 * max(_LEAST, _measure_variance(pixels))),
        sharpness=math.log(max(_LEAST, near) / max(_LEAST, _measure_change(pixels, 4))),
        detail=math.log(max(_LEAST, _measure_change(view, 1)) / (2 * max(_LEAST, variance))),
        view=view,
        digest=zlib.crc32(small.tobytes()),
    )


def _measure_variance(pixels: NDArray[np.float32]) -> float:
    """Return the variance; for a small image this is faster than ``pixels.var()``."""
    centred = pixels - pixels.mean()
    return float(np.vdot(centred, centred) / centred.size)


def _measure_change(pixels: NDArray[np.float32], distance: int) -> float:
    """Return the mean squared difference of pixels some distance apart, across and down; 0 for a smaller image."""
    if min(pixels.shape) <= distance:
        return 0.0
    across, down = pixels[:, distance:] - pixels[:, :-distance], pixels[distance:] - pixels[:-distance]
    return float(np.vdot(across, across)) / across.size / 2 + float(np.vdot(down, down)) / down.size / 2
