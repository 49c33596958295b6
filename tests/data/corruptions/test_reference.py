"""Corruptions against slow references, draw by draw."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from scipy import ndimage

import corruption_references as book
from lmr.data.corruptions import CONSTANTS
from lmr.data.corruptions.apply import corrupt
from lmr.data.corruptions.blur import enlarge_centre, make_disk, trace_line
from lmr.data.corruptions.digital import make_smoothing
from lmr.data.corruptions.weather import grow_plasma

SEVERITIES = (1, 2, 3, 4, 5)


def draw_image(side: int = 20, seed: int = 5) -> np.ndarray:
    """Left half nearly smooth, right half noise; nowhere flat, where the last bit of a float decides a whole level."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (side, side, 3))
    slope = np.linspace(0, 150, side)
    image[:, : side // 2] = (
        slope[:, None, None] + slope[: side // 2, None] / 2 + rng.integers(0, 20, (side, side // 2, 3))
    )
    return image.astype(np.uint8)


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", book.REFERENCES)
def test_matches_the_reference(name: str, constants: str, severity: int) -> None:
    image = draw_image()
    ours = corrupt(image, name, severity, seed=3, index=40, constants=constants)
    rng = np.random.default_rng([zlib.crc32(name.encode()), 40, 3])
    reference = book.REFERENCES[name](image, rng, *CONSTANTS[constants][name][severity - 1])
    difference = np.abs(ours.astype(int) - reference)
    assert difference.max() <= 1  # where the last bit of a float decides what truncation does
    assert (difference > 0).mean() < 0.06  # most with a mean of nine equal weights


@pytest.mark.parametrize(
    ("radius", "sigma"), CONSTANTS["cifar"]["defocus_blur"] + CONSTANTS["imagenet"]["defocus_blur"]
)
def test_the_disk_is_the_softened_one(radius: float, sigma: float) -> None:
    ours = make_disk(radius, sigma)
    np.testing.assert_allclose(ours, book.refer_disk(radius, sigma), atol=1e-7)


@pytest.mark.parametrize("decay", [1.75, 3.0])
def test_the_plasma_is_the_scalar_one_to_the_last_digits(decay: float) -> None:
    uniforms = np.stack([np.random.default_rng(k).uniform(-1, 1, 16 * 16 - 1) for k in range(3)])
    ours = grow_plasma(uniforms, 16, decay)
    for k in range(3):
        np.testing.assert_allclose(ours[k], book.refer_plasma(16, decay, np.random.default_rng(k)), atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.13, 1.3, 2.5, 4.5])
@pytest.mark.parametrize("side", [5, 32, 61])
def test_zoom_equals_scipy(side: int, factor: float) -> None:
    x = np.random.default_rng(side).random((side, side, 2))
    np.testing.assert_allclose(enlarge_centre(x, factor), book.zoom_slowly(x, factor), atol=1e-12)


def test_smoothing_by_a_matrix_is_filtering() -> None:
    x = np.random.default_rng(0).random((30, 24))
    smooth = make_smoothing(30, 9.0) @ x @ make_smoothing(24, 9.0).T
    np.testing.assert_allclose(smooth, ndimage.gaussian_filter(x, 9.0, mode="reflect", truncate=3.0), atol=1e-12)


def test_horizontal_line_takes_from_the_right_and_vertical_from_below() -> None:
    weights, level = trace_line(2, 1.0, 0.0)
    assert level.tolist() == [[0, k] for k in range(5)]
    assert weights.sum() == pytest.approx(1)
    assert np.all(np.diff(weights) < 0)
    assert trace_line(2, 1.0, 90.0)[1].tolist() == [[k, 0] for k in range(5)]


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("constants", ["cifar", "imagenet"])
def test_stretching_is_an_affine_map_and_a_smooth_field(constants: str, severity: int) -> None:
    """The same draws through least squares, a plain filter and spline interpolation of order 1."""
    side = 48
    image = ndimage.gaussian_filter(draw_image(side), (2, 2, 0))
    strength, sigma, shift = CONSTANTS[constants]["elastic_transform"][severity - 1]
    rng = np.random.default_rng([zlib.crc32(b"elastic_transform"), 0, 0])
    corners = np.array([(1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)]) * (side // 3) + side // 2  # (right, down)
    moved = corners + rng.uniform(-shift, shift, (3, 2))
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)  # from the place in the result to the source
    right, down = (rng.uniform(-1, 1, (side, side)) for _ in range(2))
    if strength:
        right, down = (
            strength * ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3.0) for field in (right, down)
        )
    else:
        right, down = np.zeros((side, side)), np.zeros((side, side))
    rows, columns = np.mgrid[:side, :side]
    source = np.stack([columns.ravel(), rows.ravel(), np.ones(side * side)], axis=1) @ back
    places = source.T[::-1].reshape(2, side, side)
    planes = [ndimage.map_coordinates(image[:, :, k] / 255, places, order=1, mode="mirror") for k in range(3)]
    pulled = [
        ndimage.map_coordinates(plane, [rows + down, columns + right], order=1, mode="reflect") for plane in planes
    ]
    reference = np.stack(pulled, axis=-1) * 255
    ours = corrupt(image, "elastic_transform", severity, constants=constants)
    assert np.abs(ours + 0.5 - reference).mean() < 0.6
