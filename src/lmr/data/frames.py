"""Frames: what happens to an image because of when it is seen. A stream changes each image by its place in the stream.

The result depends on the seed and the place alone, so that a stream can be entered anywhere and in any batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmr.data.sets.dataset import ImageArray

REACH = 1 / 16  # of the shorter side: how far the camera moves, in whole pixels and at least one
LIGHT = 0.1  # the exposure changes by up to this share
GRAIN = 0.02  # standard deviation of the sensor's noise, of the full range


class FrameChange(Protocol):
    """Changes images by their places in the stream; ``words`` say how, as a part of the hash of the order."""

    @property
    def words(self) -> str:
        """Everything that determines the changes."""
        ...

    def change(self, images: Sequence[ImageArray], places: Sequence[int]) -> list[ImageArray]:
        """The images as they are at these places."""
        ...


@dataclass(frozen=True)
class Jitter:
    """A camera that is not quite still: a frame is moved by a few pixels, a little brighter or darker, and noisy."""

    seed: int

    @property
    def words(self) -> str:
        """Everything that determines the frames."""
        return f"jitter {REACH:g} {LIGHT:g} {GRAIN:g} {self.seed}"

    def change(self, images: Sequence[ImageArray], places: Sequence[int]) -> list[ImageArray]:
        """The frames at these places."""
        return [jitter(image, self.seed, place) for image, place in zip(images, places, strict=True)]


def jitter(image: ImageArray, seed: int, place: int) -> ImageArray:
    """One frame of an image [H, W, 3]: moved with its edges repeated, times the exposure, plus noise, rounded."""
    generator = np.random.default_rng([zlib.crc32(b"jitter"), place, seed])
    height, width, _ = image.shape
    reach = max(1, round(min(height, width) * REACH))
    down, right = generator.integers(-reach, reach + 1, 2)
    rows, columns = (np.clip(np.arange(size) - moved, 0, size - 1) for size, moved in ((height, down), (width, right)))
    exposure = 1 + LIGHT * generator.uniform(-1, 1)
    noise = 255 * GRAIN * generator.standard_normal(image.shape)
    frame: ImageArray = np.clip(np.rint(exposure * image[rows][:, columns] + noise), 0, 255).astype(np.uint8)
    return frame
