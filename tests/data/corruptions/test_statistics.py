"""How much each corruption changes images, against numbers kept from the original code.

corruption_statistics.json says how they were made. The original was fed our random numbers, on images that the package
draws; the outputs were equal, and so must the numbers be.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from lmr.data.corruptions import CORRUPTIONS, EXTRA
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.corruptions.weather import load_textures
from pocket import draw

BOOK = json.loads(Path(__file__).with_name("corruption_statistics.json").read_text(encoding="utf-8"))
ALL = CORRUPTIONS + EXTRA


def measure_change(images: np.ndarray, name: str, severity: int, constants: str, seed: int) -> float:
    corrupted = corrupt_batch(images, name, severity, seed=seed, constants=constants)
    return float(np.abs(corrupted.astype(np.int16) - images).mean())


def need_frost(name: str) -> None:
    if name == "frost":
        try:
            load_textures()
        except ValueError as error:
            pytest.skip(str(error))


@functools.lru_cache(maxsize=2)
def draw_pocket(constants: str) -> np.ndarray:
    """20 images of 32 pixels, or two sheets of 7 x 7 of them, which is 224."""
    if constants == "cifar":
        return draw(range(20), 0)[0]
    tiles = draw(range(98), 0)[0].reshape(2, 7, 7, 32, 32, 3)
    return np.ascontiguousarray(tiles.transpose(0, 1, 3, 2, 4, 5)).reshape(2, 224, 224, 3)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", [name for name in ALL if name != "impulse_noise"])
def test_the_original_fed_our_random_numbers_changes_as_much(name: str, constants: str, severity: int) -> None:
    need_frost(name)
    expected = BOOK["replayed"][constants][name][severity - 1]
    assert measure_change(draw_pocket(constants), name, severity, constants, 11) == pytest.approx(expected, rel=2e-3)
