"""Measures of a stream of answers: pure functions of predicted and true labels [N]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


def running_accuracy(predicted: Labels, true: Labels) -> NDArray[np.float64]:
    """Share of right answers among the first n, for every n: [N]."""
    return np.cumsum(predicted == true) / np.arange(1, len(true) + 1)


def running_top_share(predicted: Labels, classes: int) -> NDArray[np.float64]:
    """Share of the most predicted class among the first n answers, for every n: [N]. 1/classes is the fair share."""
    counts = np.zeros(classes, np.int64)
    top = np.empty(len(predicted), np.int64)
    for n, label in enumerate(predicted):
        counts[label] += 1
        top[n] = max(top[n - 1] if n else 0, counts[label])
    return top / np.arange(1, len(predicted) + 1)
