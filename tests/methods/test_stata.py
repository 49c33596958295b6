"""StatA against its updates written out in NumPy, batch by batch, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import feature_streams as plain


def soften(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def normalise(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def solve(
    f: np.ndarray,
    t: np.ndarray,
    alpha: float = 1.0,
    smooth: float = 1.0,
    neighbours: int = 3,
    rounds: int = 10,
    count: str = "hard",
) -> np.ndarray:
    """Assignments [N, C] of unit features [N, D] and prototypes [C, D]."""
    n, classes = len(f), len(t)
    prior = soften(plain.SCALE * f @ t.T)
    z, mean = prior.copy(), t.copy()
    first = sum(z[i, c] * (f[i] - t[c]) ** 2 for i in range(n) for c in range(classes)) / n
    variance = np.tile(first, (classes, 1))
    w = np.zeros((n, n))
    for i in range(n):
        near = sorted((j for j in range(n) if j != i), key=lambda j: -(f[i] @ f[j]))[:neighbours]
        for j in near:
            w[i, j] = f[i] @ f[j]
    for turn in range(rounds + 1):
        likelihood = np.zeros((n, classes))
        for c in range(classes):
            likelihood[:, c] = -0.5 * ((f - mean[c]) ** 2 / variance[c]).sum(1) - 0.5 * np.log(variance[c]).sum()
        for _ in range(5):
            z = soften(np.log(prior) + likelihood / 50 + smooth / max(1, 2 * neighbours) * (w.T @ z + w @ z))
        if turn == rounds:
            break
        labels = z.argmax(1)
        for c in range(classes):
            n_c = (labels == c).sum() if count == "hard" else z[:, c].sum()
            beta = n_c / (alpha + n_c + 1e-12)
            weights = z[:, c] / z[:, c].sum()
            mean[c] = normalise(beta * normalise(weights @ f) + (1 - beta) * t[c])
            variance[c] = beta * (weights @ (f - mean[c]) ** 2) + (1 - beta) * (first + (t[c] - mean[c]) ** 2)
    return z


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"alpha": 5.0, "rounds": 3},
        {"smooth": 3.0, "neighbours": 5},
        {"neighbours": 0, "alpha": 0.1},
        {"count": "soft"},
        {"count": "soft", "alpha": 0.3, "rounds": 4},
    ],
    ids=str,
)
def test_batches_are_those_of_the_reference(given: dict[str, Any]) -> None:
    prototypes, features = plain.make_stream(6, 58)
    words = ", ".join(f"{key}={value!r}" for key, value in given.items())
    method = plain.make_method(f"stata({words})", prototypes)
    differs = False
    for batch in features.split(20):
        expected = solve(normalise(batch.numpy()), normalise(prototypes.numpy()), **given)
        looked = method.predict(batch)
        answer = method.step(batch)
        assert torch.equal(looked.logits, answer.logits)
        np.testing.assert_allclose(answer.probabilities.numpy(), expected, atol=1e-9, rtol=0)
        np.testing.assert_allclose(answer.logits.numpy(), np.log(expected), atol=1e-8, rtol=0)
        prior = soften(plain.SCALE * normalise(batch.numpy()) @ normalise(prototypes.numpy()).T)
        differs |= bool(abs(expected - prior).max() > 0.1)
    assert differs
    assert set(method.state) == {"predicted"}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_images_have_fewer_neighbours(count: int) -> None:
    prototypes, features = plain.make_stream(6, count)
    expected = solve(normalise(features.numpy()), normalise(prototypes.numpy()))
    answer = plain.make_method("stata", prototypes).step(features)
    np.testing.assert_allclose(answer.probabilities.numpy(), expected, atol=1e-9, rtol=0)


def test_class_without_mass_keeps_its_text() -> None:
    prototypes, features = plain.make_stream(6, 20)
    method = plain.make_method("stata", prototypes, scale=1e5)
    assert method.step(features).probabilities.isfinite().all()
