"""O-TPT against plain autograd, its code's form with the reflections written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmr.methods.otpt import measure_overlap
from prompt_reference import compare_streams
from view_problem import measure_mean_entropy


def reflect(texts: Tensor) -> Tensor:
    """For each class the reflection that maps its row of cosines to its own axis, less the identity: mean length."""
    cosines, total = texts @ texts.T, 0.0
    unit = torch.eye(len(texts), dtype=texts.dtype)
    for number, row in enumerate(cosines):
        target = row.norm() * unit[number]
        mirror = row - target
        householder = unit - 2 * torch.outer(mirror, mirror) / mirror.square().sum()
        total = total + ((householder @ row)[number] - 1)
    return total / len(texts)


def make_loss(weight: float, form: str):  # type: ignore[no-untyped-def]
    def loss(logits: Tensor, texts: Tensor) -> Tensor:
        if form == "rows":
            penalty = sum(torch.sqrt(sum((a @ b) ** 2 for b in texts)) - 1 for a in texts) / len(texts)
        else:
            penalty = sum(((a @ b) - float(i == j)) ** 2 for i, a in enumerate(texts) for j, b in enumerate(texts))
        return measure_mean_entropy(logits) + weight * penalty

    return loss


@pytest.mark.parametrize("form", ["rows", "frobenius"])
@pytest.mark.parametrize("weight", [18.0, 0.05])
def test_stream_is_that_of_the_reference(weight: float, form: str) -> None:
    compare_streams(f"otpt(orthogonality={weight}, penalty={form!r})", make_loss(weight, form))


def test_closed_form_is_that_of_the_reflections() -> None:
    texts = torch.nn.functional.normalize(torch.randn(9, 16, dtype=torch.float64), dim=1)
    torch.testing.assert_close(measure_overlap(texts), reflect(texts), atol=1e-12, rtol=0)


def test_gradient_of_the_closed_form_is_that_of_the_reflections() -> None:
    """The mirrors depend on the prototypes, so equal values alone would not make equal gradients."""
    texts = torch.nn.functional.normalize(torch.randn(9, 16, dtype=torch.float64), dim=1).requires_grad_()
    (closed,) = torch.autograd.grad(measure_overlap(texts), texts)
    (written_out,) = torch.autograd.grad(reflect(texts), texts)
    assert closed.abs().max() > 1e-3
    torch.testing.assert_close(closed, written_out, atol=1e-12, rtol=0)
