"""Frames of a camera against padding and cropping, and what they promise."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from lmr.data.frames import GRAIN, LIGHT, Jitter, jitter

IMAGE = np.random.default_rng(0).integers(60, 190, (32, 48, 3), dtype=np.uint8)


@pytest.mark.parametrize("place", [0, 1, 77])
def test_a_frame_is_a_padded_crop_times_exposure_plus_noise(place: int) -> None:
    generator = np.random.default_rng([zlib.crc32(b"jitter"), place, 5])
    down, right = generator.integers(-2, 3, 2).tolist()
    exposure = 0.9 + 0.2 * generator.random()
    noise = generator.standard_normal(IMAGE.shape) * 5.1
    padded = np.pad(IMAGE, ((2, 2), (2, 2), (0, 0)), mode="edge")
    moved = padded[2 - down : 34 - down, 2 - right : 50 - right].astype(np.float64)
    expected = (moved * exposure + noise).round().clip(0, 255)
    difference = np.abs(jitter(IMAGE, 5, place) - expected)
    assert difference.max() <= 1  # where a sum of another order rounds to the other side
    assert difference.mean() < 1e-3


def test_frames_depend_on_seed_and_place_alone() -> None:
    frames = Jitter(2).change([IMAGE] * 40, range(40))
    assert len({frame.tobytes() for frame in frames}) == 40
    np.testing.assert_array_equal(frames[7:9], Jitter(2).change([IMAGE] * 2, [7, 8]))
    assert jitter(IMAGE, 3, 7).tobytes() != frames[7].tobytes()
    assert all(frame.dtype == np.uint8 and frame.shape == IMAGE.shape for frame in frames)
    exposures = [frame.mean() / IMAGE.mean() for frame in frames]
    assert 1 - 1.2 * LIGHT < min(exposures) < 0.97 < 1.03 < max(exposures) < 1 + 1.2 * LIGHT
    flat = jitter(np.full((64, 64, 3), 128, np.uint8), 1, 1)
    assert flat.std() == pytest.approx(255 * GRAIN, rel=0.05)


def test_small_and_large_images() -> None:
    assert jitter(np.zeros((1, 1, 3), np.uint8), 0, 0).shape == (1, 1, 3)
    corner = np.zeros((320, 320, 3), np.uint8)
    corner[160, 160] = 255
    places = [np.argwhere(jitter(corner, 0, place)[..., 0] > 150)[0] - 160 for place in range(60)]
    assert 10 < np.abs(places).max() <= 20  # a sixteenth of the side
