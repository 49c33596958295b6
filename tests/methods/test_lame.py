"""LAME against its fixed-point iteration written out in NumPy, batch by batch, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import feature_streams as plain


def solve(
    f: np.ndarray, t: np.ndarray, affinity: str = "rbf", neighbours: int = 5, steps: int = 100
) -> tuple[np.ndarray, int]:
    """Assignments [N, C] of unit features [N, D] and prototypes [C, D], and after how many iterations."""
    n = len(f)
    distance = np.array([[np.linalg.norm(a - b) for b in f] for a in f])
    kernel = f @ f.T
    if affinity == "knn":
        kernel = np.zeros((n, n))
        for i in range(n):
            kernel[i, sorted((j for j in range(n) if j != i), key=lambda j: distance[i, j])[:neighbours]] = 1
    if affinity == "rbf":
        width = np.mean([sorted(row)[min(neighbours, n) - 1] for row in distance])
        kernel = np.exp(-(distance**2) / (2 * width**2))
    logits = plain.SCALE * f @ t.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    log_p = np.log(p / p.sum(1, keepdims=True) + 1e-10)
    y = np.exp(log_p) / np.exp(log_p).sum(1, keepdims=True)
    energy = math.inf
    for number in range(steps):
        pull = kernel @ y
        y = np.exp(log_p + pull - (log_p + pull).max(1, keepdims=True))
        y /= y.sum(1, keepdims=True)
        before, energy = energy, float((-log_p * y - pull * y + y * np.log(np.maximum(y, 1e-20))).sum())
        if number > 1 and abs(energy - before) <= 1e-8 * abs(before):
            break
    return y, number


def normalise(x: torch.Tensor) -> np.ndarray:
    return (x / x.norm(dim=-1, keepdim=True)).numpy()


@pytest.mark.parametrize(
    "given", [{}, {"affinity": "knn"}, {"affinity": "linear"}, {"neighbours": 2}, {"steps": 2}], ids=str
)
def test_batches_are_those_of_the_reference(given: dict[str, Any]) -> None:
    prototypes, features = plain.make_stream(6, 70)
    words = ", ".join(f"{key}={value!r}" for key, value in given.items())
    method = plain.make_method(f"lame({words})", prototypes)
    differs, ends = False, []
    for batch in features.split(25):
        expected, number = solve(normalise(batch), normalise(prototypes), **given)
        answer = method.step(batch)
        assert torch.equal(method.predict(batch).logits, answer.logits)
        np.testing.assert_allclose(answer.probabilities.numpy(), expected, atol=1e-9, rtol=0)
        differs |= bool((expected.argmax(1) != (normalise(batch) @ normalise(prototypes).T).argmax(1)).any())
        ends.append(number)
    assert differs
    assert max(ends) < 99


@pytest.mark.parametrize("affinity", ["rbf", "knn", "linear"])
def test_one_image_and_equal_images_are_served(affinity: str) -> None:
    prototypes, features = plain.make_stream(6, 1)
    method = plain.make_method(f"lame(affinity={affinity!r})", prototypes)
    assert method.step(features).probabilities.isfinite().all()
    assert method.step(features.expand(7, -1)).probabilities.isfinite().all()
