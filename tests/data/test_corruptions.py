"""Each corruption against a slow reference written pixel by pixel, and the promises of `corrupt`."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmr.data.corruptions import CORRUPTIONS, corrupt, grow_plasma, make_disk

SEVERITIES = (1, 2, 3, 4, 5)
NOISE = (0.04, 0.06, 0.08, 0.09, 0.10)
DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
FOG = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)


def draw_pictures(count: int, side: int = 32, seed: int = 5) -> np.ndarray:
    """Random pictures of several brightness ranges, half of them smooth."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (count, side, side, 3))
    slope = np.linspace(0, 1, side)
    for k in range(0, count, 2):
        down, right = (60 + 40 * k % 100) * slope[:, None, None], 80 * slope[None, :, None] ** 2
        pictures[k] = down + right + rng.integers(0, 40, 3)
    return pictures.astype(np.uint8)


def make_generator(name: str, index: int, seed: int) -> np.random.Generator:
    """The published recipe: a stream made today must be the same stream tomorrow."""
    return np.random.default_rng([zlib.crc32(name.encode()), index, seed])


def store(value: float) -> int:
    """Truncate, but take a value that misses a whole number by rounding errors alone for the whole number."""
    level = min(max(value, 0.0), 1.0) * 255
    return round(level) if abs(level - round(level)) < 1e-9 else int(level)


def refer_noise(picture: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    result = np.zeros_like(picture)
    for place in np.ndindex(picture.shape):
        result[place] = store(float(picture[place]) / 255 + rng.normal(0, NOISE[severity - 1]))
    return result


def mirror(position: int, side: int) -> int:
    """The border without its edge pixel: ... 2 1 | 0 1 2 ... side-1 | side-2 ..."""
    while not 0 <= position < side:
        position = -position if position < 0 else 2 * (side - 1) - position
    return position


def refer_kernel(radius: float, sigma: float) -> np.ndarray:
    disk = np.zeros((17, 17))
    for row in range(17):
        for column in range(17):
            disk[row, column] = float((row - 8) ** 2 + (column - 8) ** 2 <= radius**2)
    disk /= disk.sum()
    taps = {d: math.exp(-(d**2) / (2 * sigma**2)) for d in (-1, 0, 1)}
    total = sum(taps.values())
    soft = np.zeros((17, 17))
    for row in range(17):
        for column in range(17):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    source = disk[mirror(row + down, 17), mirror(column + right, 17)]
                    soft[row, column] += taps[down] / total * taps[right] / total * source
    return soft


def refer_defocus(picture: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    kernel = refer_kernel(*DEFOCUS[severity - 1])
    taps = [(r - 8, c - 8, kernel[r, c]) for r in range(17) for c in range(17) if kernel[r, c] > 0]
    side = len(picture)
    result = np.zeros_like(picture)
    for row, column, channel in np.ndindex(picture.shape):
        value = sum(
            weight * picture[mirror(row + down, side), mirror(column + right, side), channel] / 255
            for down, right, weight in taps
        )
        result[row, column, channel] = store(value)
    return result


def refer_plasma(size: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """Diamond-square, one point at a time, each drawing its own random number when it is made."""
    field = np.full((size, size), np.nan)
    field[0, 0] = 0
    wibble, step = 100.0, size

    def settle(row: int, column: int, neighbours: list[tuple[int, int]]) -> None:
        total = sum(field[r % size, c % size] for r, c in neighbours)
        field[row, column] = total / 4 + wibble * rng.uniform(-wibble, wibble)

    while step >= 2:
        half = step // 2
        starts = range(0, size, step)
        for r in starts:
            for c in starts:
                settle(r + half, c + half, [(r, c), (r + step, c), (r, c + step), (r + step, c + step)])
        for r in starts:
            for c in starts:
                settle(r, c + half, [(r, c), (r, c + step), (r - half, c + half), (r + half, c + half)])
        for r in starts:
            for c in starts:
                settle(r + half, c, [(r, c), (r + step, c), (r + half, c - half), (r + half, c + half)])
        step, wibble = half, wibble / decay
    assert not np.isnan(field).any()
    field -= field.min()
    field /= field.max()
    return field


def refer_fog(picture: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    strength, decay = FOG[severity - 1]
    size = 1
    while size < len(picture):
        size *= 2
    cloud = refer_plasma(size, decay, rng)
    brightest = float(picture.max()) / 255
    result = np.zeros_like(picture)
    for row, column, channel in np.ndindex(picture.shape):
        value = float(picture[row, column, channel]) / 255 + strength * float(cloud[row, column])
        result[row, column, channel] = store(value * brightest / (brightest + strength))
    return result


def refer_contrast(picture: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    result = np.zeros_like(picture)
    for channel in range(3):
        values = [int(value) / 255 for value in picture[:, :, channel].ravel()]
        mean = math.fsum(values) / len(values)
        squeezed = [store((value - mean) * CONTRAST[severity - 1] + mean) for value in values]
        result[:, :, channel] = np.reshape(squeezed, picture.shape[:2])
    return result


def resize_line(line: list[int], length: int) -> list[int]:
    """A box filter: the rounded mean of the pixels whose centres lie in the window, which is never below one pixel."""
    scale = len(line) / length
    width = max(scale, 1.0)
    result = []
    for k in range(length):
        centre = (k + 0.5) * scale
        inside = [value for place, value in enumerate(line) if -0.5 < (place + 0.5 - centre) / width <= 0.5]
        result.append(int(sum(inside) / len(inside) + 0.5))
    return result


def resize_plane(plane: np.ndarray, side: int) -> np.ndarray:
    rows = np.array([resize_line([int(v) for v in row], side) for row in plane])
    return np.array([resize_line([int(v) for v in column], side) for column in rows.T]).T


def refer_pixelate(picture: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    side = len(picture)
    small = int(side * PIXELATE[severity - 1])
    planes = [resize_plane(resize_plane(picture[:, :, channel], small), side) for channel in range(3)]
    return np.stack(planes, axis=-1).astype(np.uint8)


REFERENCES: dict[str, Callable[[np.ndarray, int, np.random.Generator], np.ndarray]] = {
    "gaussian_noise": refer_noise,
    "defocus_blur": refer_defocus,
    "fog": refer_fog,
    "contrast": refer_contrast,
    "pixelate": refer_pixelate,
}


def measure_mse(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.mean((one.astype(float) - other.astype(float)) ** 2))


def test_every_corruption_has_a_reference() -> None:
    assert set(CORRUPTIONS) == set(REFERENCES)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_matches_the_reference(name: str, severity: int) -> None:
    pictures = draw_pictures(2)
    ours = corrupt(pictures, name, severity, seed=3, first=40)
    for k, picture in enumerate(pictures):
        reference = REFERENCES[name](picture, severity, make_generator(name, 40 + k, 3))
        np.testing.assert_array_equal(ours[k], reference)


@pytest.mark.parametrize("side", [5, 16, 20])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_matches_the_reference_at_other_sizes(name: str, side: int) -> None:
    pictures = draw_pictures(2, side=side)
    ours = corrupt(pictures, name, 5)
    for k, picture in enumerate(pictures):
        reference = REFERENCES[name](picture, 5, make_generator(name, k, 0))
        np.testing.assert_array_equal(ours[k], reference)


@pytest.mark.parametrize(("radius", "sigma"), DEFOCUS)
def test_the_disk_is_the_large_one_without_its_empty_border(radius: float, sigma: float) -> None:
    ours = make_disk(radius, sigma)
    large = refer_kernel(radius, sigma)
    margin = (17 - len(ours)) // 2
    np.testing.assert_allclose(np.pad(ours, margin), large, atol=1e-15)
    assert ours.sum() == pytest.approx(1)


@pytest.mark.parametrize("decay", [1.75, 3.0])
def test_the_plasma_is_the_scalar_one_to_the_last_digits(decay: float) -> None:
    uniforms = np.stack([np.random.default_rng(k).uniform(-1, 1, 16 * 16 - 1) for k in range(3)])
    ours = grow_plasma(uniforms, 16, decay)
    for k in range(3):
        np.testing.assert_allclose(ours[k], refer_plasma(16, decay, np.random.default_rng(k)), atol=1e-12)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_the_noise_has_the_stated_spread(severity: int) -> None:
    grey = np.full((40, 32, 32, 3), 128, dtype=np.uint8)
    values = corrupt(grey, "gaussian_noise", severity) / 255
    std, count = NOISE[severity - 1], grey.size
    assert values.std() == pytest.approx(std, rel=4 / math.sqrt(2 * count) + 1e-3)
    assert values.mean() == pytest.approx((128 - 0.5) / 255, abs=5 * std / math.sqrt(count))  # half a level truncated


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_picture_does_not_depend_on_its_batch(name: str) -> None:
    pictures = draw_pictures(150)
    whole = corrupt(pictures, name, 3, seed=1, first=7)
    cuts = [0, 1, 64, 70, 150]
    parts = [
        corrupt(pictures[start:stop], name, 3, seed=1, first=7 + start) for start, stop in itertools.pairwise(cuts)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(corrupt(pictures, name, 3, seed=1, first=7), whole)


@pytest.mark.parametrize("name", ["gaussian_noise", "fog"])
def test_seed_and_place_change_the_draw(name: str) -> None:
    picture = draw_pictures(1)
    versions = [corrupt(picture, name, 3, seed, first) for seed, first in ((0, 0), (1, 0), (0, 1), (1, 1))]
    for k, one in enumerate(versions):
        assert all((one != other).any() for other in versions[k + 1 :])


@pytest.mark.parametrize("name", ["defocus_blur", "contrast", "pixelate"])
def test_the_others_are_not_random(name: str) -> None:
    picture = draw_pictures(1)
    np.testing.assert_array_equal(corrupt(picture, name, 3, 0, 0), corrupt(picture, name, 3, 1, 1))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_more_severe_is_further_away(name: str) -> None:
    pictures = draw_pictures(8)
    errors = [measure_mse(corrupt(pictures, name, severity), pictures) for severity in SEVERITIES]
    assert errors[0] > 0
    assert all(mild < strong for mild, strong in itertools.pairwise(errors))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_type_shape_and_input_are_kept(name: str) -> None:
    pictures = draw_pictures(3)
    before = pictures.copy()
    result = corrupt(pictures, name, 2)
    assert result.dtype == np.uint8
    assert result.shape == pictures.shape
    np.testing.assert_array_equal(pictures, before)
    assert corrupt(pictures[:0], name, 2).shape == (0, 32, 32, 3)
    mirrored = pictures[:, :, ::-1]
    np.testing.assert_array_equal(corrupt(mirrored, name, 2), corrupt(mirrored.copy(), name, 2))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_whole_numbers_of_numpy_are_whole_numbers(name: str) -> None:
    pictures = draw_pictures(2)
    ours = corrupt(pictures, name, np.int64(4), np.int64(2), np.int64(9))  # type: ignore[arg-type]
    np.testing.assert_array_equal(ours, corrupt(pictures, name, 4, 2, 9))


def test_values_are_clipped_and_never_wrap_around() -> None:
    white = np.full((4, 32, 32, 3), 255, dtype=np.uint8)
    black = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    on_white = corrupt(white, "gaussian_noise", 5)
    on_black = corrupt(black, "gaussian_noise", 5)
    assert 0.45 < (on_white == 255).mean() < 0.55
    assert on_white.min() > 100
    assert 0.45 < (on_black == 0).mean() < 0.57
    assert on_black.max() < 155
    assert corrupt(black, "fog", 5).max() == 0


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["defocus_blur", "contrast", "pixelate"])
def test_a_flat_picture_keeps_its_level(name: str, severity: int) -> None:
    levels = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None, None], (256, 8, 8, 3))
    np.testing.assert_array_equal(corrupt(levels, name, severity), levels)


@pytest.mark.parametrize("name", CORRUPTIONS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_square_picture_survives(name: str, data: st.DataObject) -> None:
    side = data.draw(st.integers(1, 40))
    severity = data.draw(st.integers(1, 5))
    low, high = sorted((data.draw(st.integers(0, 255)), data.draw(st.integers(0, 255))))
    picture = np.random.default_rng(side).integers(low, high + 1, (2, side, side, 3)).astype(np.uint8)
    seed, first = data.draw(st.integers(0, 2**70)), data.draw(st.integers(0, 2**40))
    result = corrupt(picture, name, severity, seed, first)
    assert result.shape == picture.shape
    if name in ("defocus_blur", "pixelate", "contrast"):
        assert result.max() <= high
        assert result.min() >= low


@pytest.mark.parametrize(
    ("name", "near"),
    [("gausian_noise", "gaussian_noise"), ("blur", "defocus_blur"), ("pixelated", "pixelate"), ("Fog", "fog")],
)
def test_an_unknown_name_gets_the_nearest_and_the_list(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{near}'") as caught:
        corrupt(draw_pictures(1), name, 1)
    assert all(known in str(caught.value) for known in CORRUPTIONS)


def test_a_name_like_no_other_gets_the_list_alone() -> None:
    with pytest.raises(ValueError, match=r"no corruption 'qqq'\. Choose one of: gaussian_noise, "):
        corrupt(draw_pictures(1), "qqq", 1)


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, "3"])
def test_a_wrong_severity_is_refused(severity: object) -> None:
    with pytest.raises(ValueError, match=r"from 1 \(mild\) to 5 \(strong\)"):
        corrupt(draw_pictures(1), "fog", severity)  # type: ignore[arg-type]


def test_a_wrong_seed_or_place_is_refused() -> None:
    with pytest.raises(ValueError, match="The seed must be"):
        corrupt(draw_pictures(1), "fog", 1, seed=-1)
    with pytest.raises(ValueError, match="The index of the first picture must be"):
        corrupt(draw_pictures(1), "contrast", 1, first=-5)


@pytest.mark.parametrize("images", [np.zeros((1, 32, 32, 3), np.float32), np.zeros((1, 32, 32, 3), np.int64), [[1]]])
def test_a_wrong_type_is_refused(images: object) -> None:
    with pytest.raises(ValueError, match="numpy array of uint8"):
        corrupt(images, "fog", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(32, 32, 3), (1, 3, 32, 32), (1, 32, 30, 3), (1, 32, 32, 4), (1, 0, 0, 3)])
def test_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Expected square colour pictures"):
        corrupt(np.zeros(shape, np.uint8), "fog", 1)
