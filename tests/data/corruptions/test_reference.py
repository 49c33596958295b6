"""Corruptions against slow references, draw by draw."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from scipy import ndimage

import corruption_references as book
from lmr.data.corruptions import CONSTANTS
from lmr.data.corruptions.apply import corrupt

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
