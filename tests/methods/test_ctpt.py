"""C-TPT against plain autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmr.methods.ctpt import measure_dispersion
from prompt_reference import compare_streams
from view_problem import measure_mean_entropy


def make_loss(weight: float):  # type: ignore[no-untyped-def]
    def loss(logits: Tensor, texts: Tensor) -> Tensor:
        mean = sum(texts) / len(texts)
        apart = sum((text - mean).square().sum().sqrt() for text in texts) / len(texts)
        return measure_mean_entropy(logits) - weight * apart

    return loss


@pytest.mark.parametrize("weight", [50.0, 20.0, 0.3])
def test_stream_is_that_of_the_reference(weight: float) -> None:
    compare_streams(f"ctpt(dispersion={weight})", make_loss(weight))


def test_dispersion_of_equal_prototypes_has_a_finite_gradient() -> None:
    same = torch.full((4, 9), 1 / 3, requires_grad=True)
    measure_dispersion(same).backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()
