"""MTA against its equations in NumPy, one image and one view at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import lmr
from lmr.methods.mta import find_mode
from view_problem import make_view_problem, make_views

SIZES = (3, 2, 4)
Array = NDArray[np.float64]


def solve(z: Array, texts: Array, scale: float) -> tuple[Array, list[int]]:
    """The mode of unit features [V, D], and how long the inner loops ran."""
    count = len(z)
    logits = scale * z @ texts.T
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    width = []
    for i in range(count):
        distances = sorted(float(((z[i] - z[j]) ** 2).sum()) for j in range(count) if j != i)
        near = distances[: max(1, int(0.3 * (count - 1)))]
        width.append(0.5 * sum(near) / len(near))

    def kernel(mode: Array) -> Array:
        return np.array([np.exp(-((z[i] - mode) ** 2).sum() / (2 * width[i])) for i in range(count)])

    y, mode, lengths = np.full(count, 1 / count), z[0], []
    for _ in range(5):
        k = kernel(mode)
        lengths.append(0)
        for _ in range(5):
            lengths[-1] += 1
            old = y
            raised = np.array([(k[i] + 4 * sum((shares[i] @ shares[j]) * y[j] for j in range(count))) / 0.2
                               for i in range(count)])  # fmt: skip
            y = np.exp(raised - raised.max())
            y /= y.sum()
            if np.sqrt(((y - old) ** 2).sum()) < 1e-6:
                break
        lengths.append(0)
        for _ in range(5):
            lengths[-1] += 1
            old, weights = mode, y * kernel(mode)
            mode = sum(weights[i] * z[i] for i in range(count))
            mode = mode / np.sqrt((mode**2).sum())
            if np.sqrt(((mode - old) ** 2).sum()) < 1e-6:
                break
    return mode, lengths


@pytest.mark.parametrize("views", [2, 5, 12, 40])
def test_stream_is_that_of_the_reference(views: int) -> None:
    problem = make_view_problem()
    method = lmr.create("mta", problem.classifier)
    with torch.no_grad():
        texts = problem.encode_texts(problem.context).numpy()
    lengths: set[int] = set()
    for batch in range(len(SIZES)):
        given = make_views(batch, SIZES, views)
        for own, found in zip(given, method.step(given).logits, strict=True):
            mode, ran = solve(problem.encode_images(own).numpy(), texts, problem.scale)
            lengths |= set(ran)
            torch.testing.assert_close(found, torch.from_numpy(problem.scale * texts @ mode), atol=1e-8, rtol=0)
    assert views < 5 or len(lengths) > 1  # some loops end early, some do not


def test_single_view_and_equal_views_are_their_own_mode() -> None:
    z = torch.nn.functional.normalize(torch.randn(1, 8), dim=1)
    assert torch.equal(find_mode(z, torch.tensor([[0.5, 0.5]])), z[0])
    torch.testing.assert_close(find_mode(z.expand(6, -1), torch.full((6, 2), 0.5)), z[0])
