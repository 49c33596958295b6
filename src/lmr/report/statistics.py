"""Comparison of methods over images and orders: differences with their intervals. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError

LEVEL = 0.95  # the probability with which an interval covers the difference
_REPEATS = 1 << 20  # more than the times a stream shows one image
_ANGLES = np.linspace(0, math.pi / 2, 100_001)


@dataclass(frozen=True)
class Difference:
    """A difference of accuracies with its interval at 95 %.

    ``by_images`` and ``by_orders`` are the two parts of half of the interval, which add up as squares: how far it
    reaches for the draw of the images and for that of the orders. One order says nothing about others.
    """

    mean: float
    low: float
    high: float
    images: int
    orders: int = 1
    by_images: float = 0.0
    by_orders: float | None = None


def measure_difference(
    ours: NDArray[np.bool_],
    other: NDArray[np.bool_],
    images: NDArray[np.int64] | None = None,
    orders: NDArray[np.int64] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Difference:
    """Return "ours - other" with an interval for other images in other orders.

    Images and orders are crossed: an image is drawn with all answers of both methods to it, in all orders and under all
    corruptions, and an order with its answers to all images. Each has a variance and, as orders are few, its own
    quantile of Student's t; the half-widths of both add up as squares (Howe, "Approximate confidence limits on the mean
    of X + Y where X and Y are two tabled independent random variables", 1974). The variance over images is what
    resampling them converges to; a few orders are too few to be resampled. What depends on the image and the order
    together is in both parts, which makes the interval a little too wide. With one order it is about images alone.

    Args:
        ours: Whether each answer of our method is right, [M].
        other: The same of the other method, [M].
        images: The image that each answer is about, [M]; without it every answer is about another one.
        orders: The order that each answer is from, [M]; without it all are from one.
        weights: The weight of each answer in the mean, [M].
    """
    sizes = {part.shape for part in (ours, other, images, orders, weights) if part is not None}
    if len(sizes) > 1 or ours.ndim != 1 or not ours.size:
        raise LmrError(
            f"Expected answers of both methods to the same images, [M] each, got shapes "
            f"{' and '.join(str(list(size)) for size in sorted(sizes))}; align them by their index."
        )
    share = np.ones(len(ours)) if weights is None else weights
    gain = share / share.sum() * (ours.astype(np.float64) - other)
    mean = float(gain.sum())
    rest = gain - share / share.sum() * mean
    drawn = np.arange(len(ours)) if images is None else images
    by_image, count = _sum_squares(rest, drawn)
    by_order, several = _sum_squares(rest, np.zeros(len(ours)) if orders is None else orders)
    errors = [math.sqrt(v * n / (n - 1)) if n > 1 else 0.0 for v, n in ((by_image, count), (by_order, several))]
    parts = [find_quantile(LEVEL, n - 1) * v if n > 1 else 0.0 for v, n in zip(errors, (count, several), strict=True)]
    half = math.hypot(*parts) if count > 1 else 1.0
    low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return Difference(mean, low, high, count, several, parts[0], parts[1] if several > 1 else None)


def _sum_squares(parts: NDArray[np.float64], groups: NDArray[Any]) -> tuple[float, int]:
    """Return the sum over groups of the square of the sum of their parts [M], and the number of groups."""
    sums = np.bincount(np.unique(groups, return_inverse=True)[1], parts)
    return float(sums @ sums), len(sums)


def find_quantile(level: float, degrees: int) -> float:
    """Return the t with the probability ``level`` of |T| <= t, where T is Student's.

    Examples:
        >>> round(find_quantile(0.95, 2), 2), round(find_quantile(0.95, 10_000), 2)
        (4.3, 1.96)
    """
    return math.sqrt(degrees) * math.tan(float(np.interp(level, _share_angles(degrees), _ANGLES)))


@lru_cache(64)
def _share_angles(degrees: int) -> NDArray[np.float64]:
    """Return the probability that |T| is at most sqrt(degrees) tan(angle), for every angle."""
    with np.errstate(under="ignore"):
        density = np.cos(_ANGLES) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.asarray(mass / mass[-1])


def align_by_index(
    index: NDArray[np.int64], other_index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the same images in two streams, in the order of their index; both [M]."""
    _, ours, others = np.intersect1d(index, other_index, return_indices=True)
    return ours, others


def compare_answers(
    streams: Iterable[tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]], int]],
) -> Difference | None:
    """Return the difference from the answers of both methods to each stream, with the number of its order.

    None if no image has both. Every stream has the same weight, so that the mean is the difference of the mean
    accuracies.
    """
    parts = []
    for one, two, order in streams:
        mine, theirs = align_by_index(_number_answers(one["index"]), _number_answers(two["index"]))
        if count := len(mine):
            ours, others = (samples["true"] == samples["predicted"] for samples in (one, two))
            weights = np.full(count, 1 / count)
            parts.append((ours[mine], others[theirs], one["index"][mine], np.full(count, order), weights))
    return measure_difference(*map(np.concatenate, zip(*parts, strict=True))) if parts else None


def _number_answers(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for every answer: its image, and how often that came before in the stream."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    before = np.empty_like(index)
    before[order] = np.arange(len(index)) - np.searchsorted(ordered, ordered)
    return index * _REPEATS + before
