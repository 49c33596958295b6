from __future__ import annotations

import numpy as np

from lab.load.inputs import draw_image, draw_pixels
from lmr.images.files import decode_image


def test_a_number_is_always_the_same_image() -> None:
    assert draw_image(7, 32) == draw_image(7, 32) != draw_image(8, 32)
    assert np.array_equal(np.asarray(decode_image(draw_image(7, 32))), draw_pixels(7, 32))
    assert draw_pixels(7, 224).shape == (224, 224, 3)
