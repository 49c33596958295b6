"""Comparing methods over seeds and pictures: how far a number can be trusted. Pure functions."""

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
    """A difference of accuracies and the interval it lies in at ``level``."""

    mean: float
    low: float
    high: float
    level: float


def summarise(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation, of the accuracies of several seeds say."""
    if not values:
        raise LmrError("There are no numbers to summarise.")
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Spread(mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else math.nan, len(values))


def bootstrap_difference(
    ours: NDArray[np.bool_],
    other: NDArray[np.bool_],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """The paired bootstrap of "ours - other": right answers [N], or [streams, N] of the same N pictures each.

    Pictures are drawn with replacement and each is taken with both methods' answers to it in all streams, so that hard
    pictures are hard for both and a picture under fifteen corruptions counts as one. The interval holds the middle
    ``level`` of the resampled differences.
    """
    if ours.shape != other.shape or ours.ndim not in (1, 2) or not ours.size:
        raise LmrError(
            f"Expected answers of both methods to the same pictures, got shapes {list(ours.shape)} and "
            f"{list(other.shape)}; bring them into one order by their index."
        )
    if resamples < 1 or not 0 < level < 1:
        raise LmrError(f"Expected at least one resample and a level between 0 and 1, got {resamples} and {level}.")
    each = np.atleast_2d(ours.astype(np.float64) - other.astype(np.float64)).mean(0)
    random, size = np.random.default_rng(seed), len(each)
    rows = max(1, _CHUNK // size)
    means = [
        each[random.integers(0, size, (min(rows, resamples - start), size))].mean(1)
        for start in range(0, resamples, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Difference(float(each.mean()), float(low), float(high), level)


def align_by_index(
    index: NDArray[np.int64], other_index: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions in two streams at which the same pictures stand, in the order of their index; both [M]."""
    _, ours, others = np.intersect1d(index, other_index, return_indices=True)
    return ours, others
