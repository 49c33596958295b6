"""Noise: every value of every channel draws its own error.

As in all families of corruptions here, a function takes uint8 pictures [N, H, W, 3], one random generator per picture
and its constants, and gives either fractions of the full range (clipped and truncated by the caller) or finished uint8.
"""

from __future__ import annotations

import numpy as np

from lmr.data.corruptions.kinds import Floats, Generators, Pictures


def add_gaussian_noise(pictures: Pictures, generators: Generators, std: float) -> Floats:
    """The same spread at every brightness, as a sensor makes in low light."""
    return pictures / 255.0 + std * _draw_normals(pictures, generators)


def add_shot_noise(pictures: Pictures, generators: Generators, photons: float) -> Floats:
    """Light comes in whole photons; white is `photons` of them."""
    counts = [
        generator.poisson(picture / 255.0 * photons) for picture, generator in zip(pictures, generators, strict=True)
    ]
    return np.stack(counts) / photons


def add_impulse_noise(pictures: Pictures, generators: Generators, share: float) -> Pictures:
    """A share of the values is lost: half of them become 255, half 0, each channel for itself."""
    draws = np.stack([generator.random(pictures.shape[1:]) for generator in generators])
    lost = np.where(draws < share / 2, np.uint8(255), np.uint8(0))
    return np.where(draws < share, lost, pictures)


def add_speckle_noise(pictures: Pictures, generators: Generators, std: float) -> Floats:
    """The spread grows with the brightness, as where waves interfere."""
    x = pictures / 255.0
    return x + x * (std * _draw_normals(pictures, generators))


def _draw_normals(pictures: Pictures, generators: Generators) -> Floats:
    return np.stack([generator.standard_normal(pictures.shape[1:]) for generator in generators])
