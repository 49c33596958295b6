"""Metrics of a stream of answers: pure functions of predicted labels, true labels and confidences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Floats = NDArray[np.float64]

BINS = 15  # of the calibration error, as Guo et al. ("On Calibration of Modern Neural Networks", 2017) have them
LATE = 0.2  # the share of a stream that counts as its late stage
WINDOW = 1000  # consecutive images over which two methods are compared along a stream
POINTS = 200  # places of a curve that a row keeps
EARLY = 100  # labels that are revealed during the stream are of its first images: so many, or five times the labels


def draw_labelled(labels: int, when: str, seed: int, count: int, onset: int) -> NDArray[np.int64]:
    """Return the sorted places of the labelled images in a stream of ``count`` images."""
    among = count - onset if when == "whole" else min(count - onset, max(EARLY, 5 * labels))
    return np.sort(np.random.default_rng([seed, labels, count]).permutation(among)[:labels]) + onset


def accuracy(predicted: Labels, true: Labels) -> float:
    """Return the share of right answers."""
    return float((predicted == true).mean())


def macro_recall(predicted: Labels, true: Labels) -> float:
    """Return the mean, over the classes that occur in ``true``, of the share of right answers to their images."""
    counts = np.bincount(true)
    found = np.bincount(true, weights=predicted == true)
    return float((found[counts > 0] / counts[counts > 0]).mean())


def judge_classes(predicted: Labels, true: Labels) -> dict[str, float]:
    """Return accuracy and macro recall of a stream, and both of its second half."""
    half = len(true) // 2
    return {
        "accuracy": accuracy(predicted, true),
        "macro_recall": macro_recall(predicted, true),
        "accuracy_second_half": accuracy(predicted[half:], true[half:]),
        "macro_recall_second_half": macro_recall(predicted[half:], true[half:]),
    }


def running_accuracy(predicted: Labels, true: Labels) -> Floats:
    """Return the share of right answers among the first n, for every n: [N]."""
    return np.cumsum(predicted == true) / np.arange(1, len(true) + 1)


def running_top_share(predicted: Labels, classes: int) -> Floats:
    """Return the share of the most predicted class among the first n answers, for every n: [N]."""
    counts = np.zeros(classes, np.int64)
    top = np.empty(len(predicted), np.int64)
    for n, label in enumerate(predicted):
        counts[label] += 1
        top[n] = max(top[n - 1] if n else 0, counts[label])
    return top / np.arange(1, len(predicted) + 1)


def calibration_error(confidence: Floats, right: NDArray[np.bool_], bins: int = BINS) -> float:
    """Return the expected calibration error: |confidence - accuracy| in bins of equal width, weighted by their size.

    A bin holds its upper edge and not its lower one. Confidences that are not finite make the error NaN.
    """
    if not np.isfinite(confidence).all():
        return float("nan")
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    sure = np.bincount(place, weights=confidence, minlength=bins)
    correct = np.bincount(place, weights=right, minlength=bins)
    return float(np.abs(sure - correct).sum() / len(confidence))


def top_share(predicted: Labels) -> float:
    """Return the share of the most predicted class."""
    return float(np.bincount(predicted).max() / len(predicted))


def late_top_share(predicted: Labels, late: float = LATE) -> float:
    """Return the share of the most predicted class in the last fifth of the stream: the paper's figure 1 (d).

    The paper draws a "late-stage dominant class share" and does not say where the late stage begins; the fifth is ours.
    """
    return top_share(predicted[len(predicted) - max(1, round(late * len(predicted))) :])


def share_of_classes(predicted: Labels, classes: int) -> float:
    """Return the share of all classes that were predicted at least once."""
    return len(np.unique(predicted)) / classes


def effective_classes(predicted: Labels) -> float:
    """Return exp of the entropy of the predicted classes: their number if all are as frequent, 1 if there is one."""
    shares = np.unique(predicted, return_counts=True)[1] / len(predicted)
    return float(np.exp(-(shares * np.log(shares)).sum()))


def window_gains(right: NDArray[np.bool_], reference: NDArray[np.bool_], window: int = WINDOW) -> Floats:
    """Return the accuracy minus that of a reference in each window of consecutive images of one stream: [W].

    Images after the last whole window are left out; a stream shorter than a window is one.
    """
    gains = right.astype(np.float64) - reference
    if len(gains) < window:
        return np.array([gains.mean()])
    return np.asarray(gains[: len(gains) // window * window].reshape(-1, window).mean(1))


def worst_drop(gains: Floats) -> float:
    """Return the distance of the worst window below the reference; 0 if none is below."""
    return max(0.0, float(-gains.min()))


def share_below(gains: Floats) -> float:
    """Return the share of windows below the reference."""
    return float((gains < 0).mean())


def thin_curve(values: Floats, points: int = POINTS) -> dict[str, list[float]]:
    """Return a running measure [N] at no more than ``points`` places, evenly spread, the last one included."""
    seen = np.unique(np.linspace(1, len(values), min(points, len(values))).round().astype(np.int64))
    return {"images": seen.tolist(), "accuracy": values[seen - 1].tolist()}
