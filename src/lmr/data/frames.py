"""Changes of images that depend on their position in a stream.

The result depends on the seed and the position alone, so that a stream can be entered anywhere and with any batch size.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lmr.data.corruptions import CORRUPTIONS
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.corruptions.noise import ImageBatch
from lmr.data.dataset import ImageArray

REACH = 1 / 16  # of the shorter side: the largest movement of the camera, in whole pixels and at least one
LIGHT = 0.1  # the exposure changes by up to this share
GRAIN = 0.02  # standard deviation of the sensor's noise, of the full range

BLEND = "blend"  # the domain of a long haul in rows of results
LEG = 2000  # images on the way from one corruption to the next
GRID = 4  # severities are multiples of 1/4, as in CCC
SMALL = 100  # pixels of the shorter side: below, the constants of CIFAR-C are used, else those of ImageNet-C


@dataclass(frozen=True)
class Jitter:
    """A camera that is not quite still: a frame is moved by a few pixels, a little brighter or darker, and noisy."""

    seed: int

    @property
    def identity(self) -> str:
        """A text with everything that determines the frames."""
        return f"jitter {REACH:g} {LIGHT:g} {GRAIN:g} {self.seed}"

    def change(self, images: Sequence[ImageArray], places: Sequence[int]) -> list[ImageArray]:
        """Return the frames at these positions."""
        return [jitter(image, self.seed, place) for image, place in zip(images, places, strict=True)]


def jitter(image: ImageArray, seed: int, place: int) -> ImageArray:
    """Return one frame of an image [H, W, 3]: moved, edges repeated, times the exposure, plus noise, rounded."""
    generator = np.random.default_rng([zlib.crc32(b"jitter"), place, seed])
    height, width, _ = image.shape
    reach = max(1, round(min(height, width) * REACH))
    down, right = generator.integers(-reach, reach + 1, 2)
    rows, columns = (np.clip(np.arange(size) - moved, 0, size - 1) for size, moved in ((height, down), (width, right)))
    exposure = 1 + LIGHT * generator.uniform(-1, 1)
    noise = 255 * GRAIN * generator.standard_normal(image.shape)
    frame: ImageArray = np.clip(np.rint(exposure * image[rows][:, columns] + noise), 0, 255).astype(np.uint8)
    return frame


@dataclass(frozen=True)
class Blend:
    """Two corruptions, applied one after the other, and the severity of each; one of them may be 0."""

    first: str
    second: str
    falling: float
    rising: float


@dataclass(frozen=True)
class Haul:
    """The long haul: an endless path through pairs of corruptions that blend into each other without notice.

    After CCC (Press et al., "RDumb: A Simple Approach that Questions Our Progress in Continual Test-Time Adaptation",
    NeurIPS 2023); docs/life.md lists the differences. ``severity`` is that of a corruption without a second one.
    """

    seed: int
    severity: int

    @property
    def identity(self) -> str:
        """A text with everything that determines the images."""
        return f"haul {LEG} {GRID} {self.severity} {self.seed}"

    def change(self, images: Sequence[ImageArray], places: Sequence[int]) -> list[ImageArray]:
        """Corrupt clean images as at these positions; the noise of an image depends on its position."""
        changed = [np.empty(0, np.uint8)] * len(images)
        groups: dict[tuple[Blend, tuple[int, ...]], list[int]] = {}
        for slot, (image, place) in enumerate(zip(images, places, strict=True)):
            groups.setdefault((self.locate(place), image.shape), []).append(slot)
        for (blend, _), slots in groups.items():
            part, numbers = np.stack([images[slot] for slot in slots]), [int(places[slot]) for slot in slots]
            part = corrupt_between(part, blend.first, blend.falling, numbers, self.seed)
            part = corrupt_between(part, blend.second, blend.rising, numbers, self.seed)
            for slot, image in zip(slots, part, strict=True):
                changed[slot] = image
        return changed

    def locate(self, place: int) -> Blend:
        """Return the corruptions at a position: severities of a constant sum, from the first alone to the second."""
        leg, way = divmod(int(place), LEG)
        rising = way * GRID * self.severity // LEG / GRID
        return Blend(
            name_corruption(leg, self.seed), name_corruption(leg + 1, self.seed), self.severity - rising, rising
        )


def name_corruption(number: int, seed: int) -> str:
    """Return the corruption at the end of a number of legs: all 15 in random order, again and again."""
    rounds, place = divmod(number, len(CORRUPTIONS))
    return list_round(rounds, seed)[place]


@lru_cache
def list_round(number: int, seed: int) -> tuple[str, ...]:
    """Return all corruptions in the order of one round; it never begins with the last of the round before."""
    generator = np.random.default_rng([zlib.crc32(b"haul"), number, seed])
    names = [CORRUPTIONS[place] for place in generator.permutation(len(CORRUPTIONS))]
    if number and names[0] == list_round(number - 1, seed)[-1]:
        names[0], names[1] = names[1], names[0]
    return tuple(names)


def corrupt_between(images: ImageBatch, name: str, severity: float, numbers: Sequence[int], seed: int) -> ImageBatch:
    """Corrupt images [N, H, W, 3] at a severity from 0 to 5: the weighted mean of the whole severities around it.

    Both have the same random draws. Severity 0 is the clean image.
    """
    low, share = int(severity), severity % 1
    around = (low, low + 1) if share else (low,)
    constants = "cifar" if min(images.shape[1:3]) < SMALL else "imagenet"
    whole = [
        corrupt_batch(images, name, level, seed=seed, indices=numbers, constants=constants) if level else images
        for level in around
    ]
    if not share:
        return whole[0]
    return np.rint((1 - share) * whole[0] + share * whole[1]).astype(np.uint8)
