"""Comparison of methods over images: the paired bootstrap, McNemar's test, Holm's correction. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError

_CHUNK = 1 << 22  # drawn numbers at a time
_REPEATS = 1 << 20  # more than the times a stream shows one image


@dataclass(frozen=True)
class Difference:
    """A difference of accuracies, its interval at ``level``, the number of images, and the p-value of no difference."""

    mean: float
    low: float
    high: float
    level: float
    images: int
    p: float


def bootstrap_difference(
    ours: NDArray[np.bool_],
    other: NDArray[np.bool_],
    images: NDArray[np.int64] | None = None,
    weights: NDArray[np.float64] | None = None,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Return "ours - other" with the interval of the paired bootstrap over images.

    Images are drawn with replacement, each with all answers of both methods to it: hard images are hard for both, and
    an image under fifteen corruptions counts as one (it need not occur under all of them). The interval holds the
    middle ``level`` of the resampled differences. The p-value is that of McNemar's test with images as clusters
    (Durkalski et al., "Analysis of clustered matched-pair data", 2003): the sum over images in units of its standard
    deviation under the hypothesis of no difference, which is normal for many images.

    Args:
        ours: Whether each answer of our method is right, [M].
        other: The same of the other method, [M].
        images: The image that each answer is about, [M]; without it every answer is about another one.
        weights: The weight of each answer in the mean, [M].
        resamples: The number of draws.
        level: The share of the resampled differences inside the interval.
        seed: The seed of the draws.
    """
    sizes = {part.shape for part in (ours, other, images, weights) if part is not None}
    if len(sizes) > 1 or ours.ndim != 1 or not ours.size:
        raise LmrError(
            f"Expected answers of both methods to the same images, [M] each, got shapes "
            f"{' and '.join(str(list(size)) for size in sorted(sizes))}; align them by their index."
        )
    if resamples < 1 or not 0 < level < 1:
        raise LmrError(f"Expected at least one resample and a level between 0 and 1, got {resamples} and {level}.")
    weights = np.ones(len(ours)) if weights is None else weights
    _, place = np.unique(np.arange(len(ours)) if images is None else images, return_inverse=True)
    total = np.bincount(place, weights * (ours.astype(np.float64) - other))
    weight = np.bincount(place, weights)
    random, size = np.random.default_rng(seed), len(total)
    rows = max(1, _CHUNK // size)
    means = []
    for start in range(0, resamples, rows):
        drawn = random.integers(0, size, (min(rows, resamples - start), size))
        means.append(total[drawn].sum(1) / weight[drawn].sum(1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    spread = math.sqrt(float(total @ total))
    p = math.erfc(abs(float(total.sum())) / spread / math.sqrt(2)) if spread else 1.0
    return Difference(float(total.sum() / weight.sum()), float(low), float(high), level, size, p)


def correct_holm(values: Sequence[float]) -> list[float]:
    """Return the p-values of several tests after Holm's correction (1979), in the same order.

    The probability that any of the tests finds a difference where there is none is at most the level, however the tests
    depend on each other.

    Examples:
        >>> [round(p, 3) for p in correct_holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(values, np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in adjusted]


def align_by_index(
    index: NDArray[np.int64], other_index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the same images in two streams, in the order of their index; both [M]."""
    _, ours, others = np.intersect1d(index, other_index, return_indices=True)
    return ours, others


def compare_answers(
    pairs: Iterable[tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]]], seed: int = 0
) -> Difference | None:
    """Return the difference from the answers of both methods to each stream; None if no image has both.

    Every stream has the same weight, so that the mean is the difference of the mean accuracies.
    """
    parts = []
    for one, two in pairs:
        mine, theirs = align_by_index(_number_answers(one["index"]), _number_answers(two["index"]))
        if len(mine):
            ours, others = (samples["true"] == samples["predicted"] for samples in (one, two))
            parts.append((ours[mine], others[theirs], one["index"][mine], np.full(len(mine), 1 / len(mine))))
    if not parts:
        return None
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return bootstrap_difference(*columns, seed=seed)


def _number_answers(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for every answer: its image, and how often that came before in the stream."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    before = np.empty_like(index)
    before[order] = np.arange(len(index)) - np.searchsorted(ordered, ordered)
    return index * _REPEATS + before
