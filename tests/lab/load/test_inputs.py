from __future__ import annotations

import io

import numpy as np
from PIL import Image

from lab.load.inputs import draw_image, draw_pixels, make_bomb
from lmr.images.files import decode_image


def test_a_number_is_always_the_same_image() -> None:
    assert draw_image(7, 32) == draw_image(7, 32) != draw_image(8, 32)
    assert np.array_equal(np.asarray(decode_image(draw_image(7, 32))), draw_pixels(7, 32))
    assert draw_pixels(7, 224).shape == (224, 224, 3)


def test_a_bomb_is_small_and_its_header_is_not() -> None:
    bomb = make_bomb(5000)
    assert len(bomb) < 20_000
    with Image.open(io.BytesIO(bomb)) as image:
        assert image.size == (5000, 5000)
