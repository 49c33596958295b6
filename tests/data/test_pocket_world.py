"""The pocket world: an image depends on (seed, index) and on nothing else, and shows what its scene says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmr.data.pocket_world import CLASSES, COLOURS, SHAPES, SIZE, Scene, draw


@pytest.fixture(scope="module")
def world() -> tuple[np.ndarray, Scene]:
    return draw(range(1200), seed=1)


def take(world: tuple[np.ndarray, Scene], places: Any) -> list[np.ndarray]:
    images, scene = world
    return [images[places], scene.label[places], scene.size[places], scene.place[places]]


def are_equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# A pure function of two numbers.


def test_shapes_and_types(world: tuple[np.ndarray, Scene]) -> None:
    images, scene = world
    assert images.shape == (1200, SIZE, SIZE, 3)
    assert images.dtype == np.uint8
    for values in (scene.label, scene.size, scene.place):
        assert values.shape == (1200,)
        assert values.dtype == np.int64
    assert set(scene.label) == set(range(100))
    assert set(scene.size) == {-1, 0, 1}
    assert set(scene.place) == {-1, 0, 1, 2, 3}


@pytest.mark.parametrize("cut", [1, 63, 127, 128, 129, 255, 256, 257, 383])
def test_image_is_the_same_in_any_batch(cut: int, world: tuple[np.ndarray, Scene]) -> None:
    """Images are drawn in chunks: a boundary anywhere must not show."""
    assert are_equal(take(draw(range(cut, 384), seed=1), slice(None)), take(world, slice(cut, 384)))


def test_image_alone_is_the_image_among_others(world: tuple[np.ndarray, Scene]) -> None:
    for index in (0, 1, 126, 127, 128, 129, 500, 1199):
        assert are_equal(take(draw([index], seed=1), slice(None)), take(world, [index]))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=9), st.integers(-(2**70), 2**70), st.data())
def test_images_do_not_depend_on_order_or_batch(indices: list[int], seed: int, data: st.DataObject) -> None:
    whole = draw(indices, seed)
    places = data.draw(st.lists(st.sampled_from(range(len(indices))), min_size=1, max_size=9))
    assert are_equal(take(draw([indices[k] for k in places], seed), slice(None)), take(whole, places))


def test_indices_may_come_in_any_form(world: tuple[np.ndarray, Scene]) -> None:
    expected = take(world, slice(3, 7))
    array = np.arange(3, 7)
    forms = [range(3, 7), [3, 4, 5, 6], (3, 4, 5, 6), (k for k in range(3, 7)), array, array.astype(np.uint8)]
    for form in forms:
        assert are_equal(take(draw(form, seed=1), slice(None)), expected)
    assert np.array_equal(array, [3, 4, 5, 6])


def test_global_generator_is_neither_read_nor_moved() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = draw(range(5), seed=9)[0]
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert np.array_equal(draw(range(5), seed=9)[0], first)


def test_images_and_worlds_differ(world: tuple[np.ndarray, Scene]) -> None:
    images = world[0]
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)
    for seed in (0, 2, -1, 2**40):
        other, scene = draw(range(64), seed)
        assert not (other == images[:64]).all((1, 2, 3)).any()
        assert (scene.label != world[1].label[:64]).mean() > 0.8


# What is in it.


def test_classes_are_a_hundred_different_names() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 100
    for label, name in enumerate(CLASSES):
        words = name.split()
        assert words[-1] == SHAPES[label // 10]
        assert words[-2] == COLOURS[label % 5]
        assert words[:-2] == (["striped"] if label % 10 >= 5 else [])


def test_labels_are_about_uniform(world: tuple[np.ndarray, Scene]) -> None:
    counts = np.bincount(world[1].label, minlength=100)
    spread = ((counts - 12) ** 2 / 12).sum()  # chi-squared with 99 degrees: 99 on average, +-14
    assert 40 < spread < 160
    assert np.abs(counts.reshape(4, 25).sum(1) - 300).max() < 50
    shapes, finishes = counts.reshape(10, 10).sum(1), counts.reshape(10, 10).sum(0)
    assert min(shapes.min(), finishes.min()) > 80


def test_attributes_do_not_depend_on_each_other(world: tuple[np.ndarray, Scene]) -> None:
    """Only size and place do: a large shape has less room to move."""
    scene = world[1]
    columns = [scene.label // 10, scene.label % 10, scene.size, scene.place]
    table = np.corrcoef(np.stack(columns).astype(float)) - np.eye(4)
    table[2:, 2:] = 0
    assert np.abs(table).max() < 0.1


def weigh_colour(images: np.ndarray) -> np.ndarray:
    """How colourful every pixel is: the shape is, background and shade are not."""
    values = images.astype(float) / 255
    colourful = (values.max(-1) - values.min(-1)) / (values.max(-1) + 0.05)
    return np.maximum(colourful - 0.45, 0)


def test_place_words_fit(world: tuple[np.ndarray, Scene]) -> None:
    images, scene = world
    weight = weigh_colour(images)
    grid = np.arange(SIZE) - (SIZE - 1) / 2
    total = weight.sum((1, 2)) + 1e-9
    across, down = (weight.sum(1) * grid).sum(1) / total, (weight.sum(2) * grid).sum(1) / total
    left, right, top, bottom = (scene.place == k for k in range(4))
    assert across[left].mean() < -2 < 2 < across[right].mean()
    assert down[top].mean() < -2 < 2 < down[bottom].mean()
    assert abs(across[top | bottom].mean()) < 1
    assert abs(down[left | right].mean()) < 1


def test_size_words_fit(world: tuple[np.ndarray, Scene]) -> None:
    images, scene = world
    area = (weigh_colour(images) > 0).sum((1, 2))
    small, middle, large = (area[scene.size == k].mean() for k in (0, -1, 1))
    assert 1.1 * small < middle
    assert 1.1 * middle < large


@pytest.mark.parametrize(("colour", "channel"), [("red", 0), ("green", 1), ("blue", 2)])
def test_colour_words_fit(colour: str, channel: int, world: tuple[np.ndarray, Scene]) -> None:
    images, scene = world
    mine = scene.label % 5 == COLOURS.index(colour)
    weight = weigh_colour(images[mine])[..., None]
    mean = (images[mine] * weight).sum((1, 2)) / (weight.sum((1, 2)) + 1e-9)
    assert (mean.argmax(1) == channel).mean() > 0.85


def test_stripes_are_darker_and_rougher(world: tuple[np.ndarray, Scene]) -> None:
    images, scene = world
    striped = scene.label % 10 >= 5
    rough = np.abs(np.diff(images.astype(float).mean(-1), axis=2)).mean((1, 2))
    assert rough[striped].mean() > 1.15 * rough[~striped].mean()


# What it refuses.


BAD = [[], (), [[1]], [[1], [1, 2]], [1.0], [0.5], [True], ["a"], [None], [-1], [0, -1], [2**64], np.array(3), 5, None]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_bad_indices_get_a_sentence(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"whole numbers from 0.*range\(64\)"):
        draw(bad)


@pytest.mark.parametrize("bad", [0.5, 1.0, "x", None, [1]])
def test_bad_seed_gets_a_sentence(bad: Any) -> None:
    with pytest.raises(ValueError, match="seed"):
        draw([0], bad)
