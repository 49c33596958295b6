"""Brightness and saturation, changed in the hue-saturation-value hexcone (A. R. Smith, 1978).

The arithmetic keeps the order of scikit-image's, which the authors used: results agree to the last bit.
"""

from __future__ import annotations

import numpy as np

from lmr.data.corruptions.array_types import Floats, Generators, ImageBatch


def brighten(images: ImageBatch, generators: Generators, amount: float) -> Floats:
    """Add to the value (the largest of the three channels), keep hue and saturation."""
    hue, saturation, value = split_colour(images / 255.0)
    return join_colour(hue, saturation, np.clip(value + amount, 0, 1))


def saturate(images: ImageBatch, generators: Generators, factor: float, amount: float) -> Floats:
    """Change the saturation linearly: towards grey at severities 1 and 2, towards pure colours from 3 on."""
    hue, saturation, value = split_colour(images / 255.0)
    return join_colour(hue, np.clip(saturation * factor + amount, 0, 1), value)


def split_colour(x: Floats) -> tuple[Floats, Floats, Floats]:
    """[..., 3] in [0, 1] -> hue, saturation and value, each [...] in [0, 1]; grey has hue 0, black saturation 0."""
    red, green, blue = x[..., 0], x[..., 1], x[..., 2]
    value: Floats = x.max(axis=-1)
    spread = value - x.min(axis=-1)
    grey = spread == 0
    divisor = np.where(grey, 1.0, spread)
    sixths = np.where(
        blue == value,
        4.0 + (red - green) / divisor,
        np.where(green == value, 2.0 + (blue - red) / divisor, (green - blue) / divisor),
    )
    hue = np.where(grey, 0.0, (sixths / 6.0) % 1.0)
    saturation = np.where(grey, 0.0, spread / np.where(value == 0, 1.0, value))
    return hue, saturation, value


def join_colour(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """The inverse of `split_colour`: hue, saturation and value [...] -> [..., 3]."""
    sector = np.floor(hue * 6)
    part = hue * 6 - sector
    low = value * (1 - saturation)
    falling = value * (1 - part * saturation)
    rising = value * (1 - (1 - part) * saturation)
    turn = sector.astype(np.int64) % 6
    return np.stack(
        [
            np.choose(turn, (value, falling, low, low, rising, value)),
            np.choose(turn, (rising, value, value, falling, low, low)),
            np.choose(turn, (low, low, rising, value, value, falling)),
        ],
        axis=-1,
    )
