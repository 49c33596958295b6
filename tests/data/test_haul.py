"""The long haul: its path, and its images against single corruptions applied one after the other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lmr.data.corruptions import CORRUPTIONS, corrupt
from lmr.data.frames import LEG, Haul, corrupt_between, name_corruption
from lmr.data.pocket_world import PocketWorld
from lmr.data.streams import make_stream

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


def test_paths_differ_by_seed_and_severity() -> None:
    paths = [[Haul(seed, 5).locate(LEG * leg).first for leg in range(15)] for seed in (1, 2, 3)]
    assert len({tuple(path) for path in paths}) == 3
    assert max(Haul(1, 3).locate(place).falling for place in range(0, LEG, 50)) == 3.0
    assert Haul(1, 3).identity != Haul(1, 5).identity != Haul(2, 5).identity


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


def test_images_of_several_sizes() -> None:
    large = np.random.default_rng(1).integers(0, 256, (120, 130, 3), dtype=np.uint8)
    found = Haul(1, 5).change([IMAGES[0], large], [0, 0])
    name = Haul(1, 5).locate(0).first
    np.testing.assert_array_equal(found[0], corrupt(IMAGES[0], name, 5, seed=1, constants="cifar"))
    np.testing.assert_array_equal(found[1], corrupt(large, name, 5, seed=1, constants="imagenet"))
