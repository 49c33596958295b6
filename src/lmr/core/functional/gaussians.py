"""Gaussians of classes with one precision matrix: pure functions that two or more methods need."""

from __future__ import annotations

from torch import Tensor


def measure_likelihood(features: Tensor, means: Tensor, precision: Tensor) -> Tensor:
    """Return -1/2 (z - m)' L (z - m) [n, C] of features [n, D], without -1/2 z' L z, which all classes share.

    ``means`` [C, D] and the symmetric ``precision`` L [D, D] are those of the Gaussians. What is left is linear in the
    features, so a mean of features has the mean of their scores.
    """
    pulled = means @ precision
    return features @ pulled.T - (pulled * means).sum(1) / 2
