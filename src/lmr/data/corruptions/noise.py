"""Noise: every value of every channel gets its own error.

Like all corruptions here, a function takes uint8 images [N, H, W, 3], one random generator per image and its constants.
It returns fractions of the full range, which the caller clips and truncates, or final uint8 values.
"""

from __future__ import annotations

import numpy as np

from lmr.data.corruptions.array_types import Floats, Generators, ImageBatch


def add_gaussian_noise(images: ImageBatch, generators: Generators, std: float) -> Floats:
    """The same spread at every brightness, as a sensor makes in low light."""
    return images / 255.0 + std * _draw_normals(images, generators)


def add_shot_noise(images: ImageBatch, generators: Generators, photons: float) -> Floats:
    """Light comes in whole photons; white is `photons` of them."""
    counts = [generator.poisson(image / 255.0 * photons) for image, generator in zip(images, generators, strict=True)]
    return np.stack(counts) / photons


def add_impulse_noise(images: ImageBatch, generators: Generators, share: float) -> ImageBatch:
    """Replace a share of the values, each channel independently: half of them by 255, half by 0."""
    draws = np.stack([generator.random(images.shape[1:]) for generator in generators])
    lost = np.where(draws < share / 2, np.uint8(255), np.uint8(0))
    return np.where(draws < share, lost, images)


def add_speckle_noise(images: ImageBatch, generators: Generators, std: float) -> Floats:
    """The spread grows with the brightness, as where waves interfere."""
    x = images / 255.0
    return x + x * (std * _draw_normals(images, generators))


def _draw_normals(images: ImageBatch, generators: Generators) -> Floats:
    return np.stack([generator.standard_normal(images.shape[1:]) for generator in generators])
