"""Frames of a camera against padding and cropping; the long haul against single corruptions in sequence."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from lmr.data.corruptions import CORRUPTIONS
from lmr.data.corruptions.apply import corrupt
from lmr.data.frames import GRAIN, LEG, LIGHT, Haul, Jitter, corrupt_between, jitter, name_corruption
from lmr.data.streams import make_stream
from pocket import PocketWorld

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


IMAGES = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_path_is_continuous_and_meets_every_corruption(seed: int) -> None:
    names = [name_corruption(number, seed) for number in range(60)]
    assert all(one != two for one, two in itertools.pairwise(names))
    assert all(set(names[k : k + 15]) == set(CORRUPTIONS) for k in range(0, 60, 15))
    haul, before = Haul(seed, 5), {names[0]: 5.0}
    for place in range(0, 6 * LEG, 10):
        blend = haul.locate(place)
        now = {blend.first: blend.falling, blend.second: blend.rising}
        assert all(4 * severity == round(4 * severity) and 0 <= severity <= 5 for severity in now.values())
        moves = [abs(now.get(name, 0.0) - before.get(name, 0.0)) for name in {*now, *before}]
        assert max(moves) <= 0.25  # nobody gives notice
        assert sum(now.values()) == 5
        before = now
    assert [haul.locate(leg * LEG).first for leg in range(6)] == names[:6]
    assert {haul.locate(leg * LEG).falling for leg in range(6)} == {5.0}


@pytest.mark.parametrize("name", ["gaussian_noise", "defocus_blur", "jpeg_compression"])
def test_between_two_severities_is_their_weighted_mean(name: str) -> None:
    whole = {level: np.stack([corrupt(image, name, level, seed=9, index=place, constants="cifar")
                              for image, place in zip(IMAGES, (4, 8, 15), strict=True)])
             for level in (1, 4, 5)}  # fmt: skip
    whole[0] = IMAGES
    for severity in (0.0, 1.0, 5.0):
        np.testing.assert_array_equal(corrupt_between(IMAGES, name, severity, [4, 8, 15], 9), whole[int(severity)])
    for low, high, share in ((0, 1, 0.25), (4, 5, 0.75)):
        expected = np.round((1 - share) * whole[low].astype(float) + share * whole[high].astype(float))
        found = corrupt_between(IMAGES, name, low + share, [4, 8, 15], 9)
        np.testing.assert_array_equal(found, expected)


def test_images_of_a_haul_are_corrupted_twice_by_their_place() -> None:
    world = PocketWorld(count=30)
    stream = make_stream(world, "clean", order="haul", limit=LEG + 40, batch_size=16, seed=2)
    haul, first = Haul(2, 5), (LEG // 2) // 16
    batch = next(stream.batches(first))  # in the middle of a leg
    for slot in (0, 15):
        place = 16 * first + slot
        (image,) = world.read("clean", 0, [int(stream.index[place])])
        blend = haul.locate(place)
        for name, severity in ((blend.first, blend.falling), (blend.second, blend.rising)):
            image = corrupt_between(image[None], name, severity, [place], 2)[0]
        np.testing.assert_array_equal(batch.images[slot], image)
    other = make_stream(world, "clean", order="haul", limit=LEG + 40, batch_size=5, seed=2)
    again = [
        image
        for number, batch in zip(range(4), other.batches(16 * first // 5 + 1), strict=False)
        for image in batch.images
    ]
    skipped = 5 * (16 * first // 5 + 1) - 16 * first
    np.testing.assert_array_equal(again[: 16 - skipped], batch.images[skipped:])
