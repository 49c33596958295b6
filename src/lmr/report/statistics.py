"""Comparing methods over seeds and images: how certain a number is. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError

_CHUNK = 1 << 22  # drawn numbers at a time


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of ``count`` numbers; the deviation of one number is NaN."""

    mean: float
    sd: float
    count: int


@dataclass(frozen=True)
class Difference:
    """A difference of accuracies, its interval at ``level``, and how many images it is computed from."""

    mean: float
    low: float
    high: float
    level: float
    images: int


def summarise(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation, for example of the accuracies of several seeds."""
    if not values:
        raise LmrError("There are no numbers to summarise.")
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Spread(mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else math.nan, len(values))


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
    """The paired bootstrap of "ours - other": right answers [M] of both, and which image each is about [M].

    Without ``images`` every answer is about another one. Images are drawn with replacement, each with all answers of
    both methods to it: hard images are hard for both, and an image under fifteen corruptions counts as one (it need
    not occur under all of them). ``weights`` [M] say how much an answer counts in the mean. The interval holds the
    middle ``level`` of the resampled differences.
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
    return Difference(float(total.sum() / weight.sum()), float(low), float(high), level, size)


def align_by_index(
    index: NDArray[np.int64], other_index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the same images in two streams, in the order of their index; both [M]."""
    _, ours, others = np.intersect1d(index, other_index, return_indices=True)
    return ours, others
