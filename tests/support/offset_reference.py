"""The offset of a few labels in NumPy and SciPy, written from its equations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax


def fit_by_scipy(z: NDArray, labels: NDArray, start: NDArray) -> NDArray:
    def measure(d: NDArray) -> tuple[float, NDArray]:
        shifted = z + d
        fit = (logsumexp(shifted, axis=1) - shifted[np.arange(len(z)), labels]).sum()
        slope = softmax(shifted, axis=1).sum(0) - np.bincount(labels, minlength=len(d))
        return fit + ((d - start) ** 2).sum() / 2, slope + d - start

    options = {"maxiter": 50_000, "maxfun": 200_000, "ftol": 1e-16, "gtol": 1e-12}
    return minimize(measure, start, jac=True, method="L-BFGS-B", options=options).x


def match_by_iteration(z: NDArray, shares: NDArray) -> NDArray:
    d = np.zeros(len(shares))
    for _ in range(1_000):
        d += np.log(shares) - np.log(softmax(z + d, axis=1).mean(0))
    return d - d.mean()


def choose_start(
    answers: NDArray, z: NDArray, labels: NDArray, judged: NDArray, elsewhere: NDArray | float = 0
) -> NDArray:
    """d0 from the answers to all images, and the logits z and labels of some, of which those ``judged`` count."""
    classes = z.shape[1]

    def count(places: NDArray) -> NDArray:
        counts = np.bincount(labels[places], minlength=classes) + elsewhere + 50 / classes
        return match_by_iteration(answers, counts / counts.sum()) / 2

    def likely(place: int, d: NDArray) -> float:
        return float((z[place] + d)[labels[place]] - logsumexp(z[place] + d))

    equal = match_by_iteration(answers, np.full(classes, 1 / classes))
    folds = [count(judged[judged % 5 != k]) for k in range(5)]
    gain = sum(likely(place, folds[place % 5]) - likely(place, equal) for place in judged)
    share = 1 / (1 + np.exp(-gain))
    return share * count(judged) + (1 - share) * equal
