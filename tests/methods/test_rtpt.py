"""R-TPT against plain autograd, its weights computed view by view."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lmr
from prompt_reference import compare_streams
from view_problem import make_view_problem, make_views, measure_entropy


def loss(logits: Tensor, texts: Tensor) -> Tensor:
    return sum(measure_entropy(row) for row in logits) / len(logits)


def make_answer(neighbours: int, temperature: float, scale: float = 60.0):  # type: ignore[no-untyped-def]
    def answer(features: Tensor, texts: Tensor) -> Tensor:
        weights = []
        for k, own in enumerate(features):
            near = sorted((float(own @ other) for i, other in enumerate(features) if i != k), reverse=True)[:neighbours]
            weights.append(sum(near) / len(near))
        shares = torch.tensor([(w - max(weights)) / temperature for w in weights], dtype=torch.float64).exp()
        shares = shares / shares.sum()
        return sum(share * scale * own @ texts.T for share, own in zip(shares, features, strict=True))

    return answer


@pytest.mark.parametrize(("neighbours", "temperature"), [(20, 0.01), (3, 0.5)])
def test_stream_is_that_of_the_reference(neighbours: int, temperature: float) -> None:
    spec = f"rtpt(neighbours={neighbours}, temperature={temperature}, keep=0.3)"
    compare_streams(spec, loss, make_answer(neighbours, temperature), keep=0.3)


def test_single_view_answers_alone() -> None:
    problem = make_view_problem()
    views = make_views(0, (2,), 1)
    one, other = (lmr.create(name, problem.classifier).step(views).logits for name in ("rtpt", "tpt"))
    torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
