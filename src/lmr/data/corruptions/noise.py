"""Noise: every value of every channel gets its own error.

In all modules of corruptions, the function of a corruption has its name. It takes uint8 images [N, H, W, 3], one random
generator per image and the constants of a severity. It returns fractions of the full range, which the caller clips and
truncates, or final uint8 values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ImageBatch = npt.NDArray[np.uint8]  # [N, H, W, 3], RGB
Floats = npt.NDArray[np.float64]
Generators = Sequence[np.random.Generator]  # one per image


def gaussian_noise(images: ImageBatch, generators: Generators, std: float) -> Floats:
    """Add noise with the same spread at every brightness, like a sensor in low light."""
    return images / 255.0 + std * draw_normals(images, generators)


def shot_noise(images: ImageBatch, generators: Generators, photons: float) -> Floats:
    """Count whole photons; white is `photons` of them."""
    counts = [generator.poisson(image / 255.0 * photons) for image, generator in zip(images, generators, strict=True)]
    return np.stack(counts) / photons


def impulse_noise(images: ImageBatch, generators: Generators, share: float) -> ImageBatch:
    """Replace a share of the values, each channel independently: half of them by 255, half by 0."""
    draws = np.stack([generator.random(images.shape[1:]) for generator in generators])
    lost = np.where(draws < share / 2, np.uint8(255), np.uint8(0))
    return np.where(draws < share, lost, images)


def draw_normals(images: ImageBatch, generators: Generators) -> Floats:
    """Draw a standard normal number for every value of every image, with the generator of the image."""
    return np.stack([generator.standard_normal(images.shape[1:]) for generator in generators])
