"""The margin of LMR at its limits; tests/methods/test_lmr.py compares whole streams with a reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmr.core.functional.margin import (
    adapt_margin,
    confidence_weight,
    find_protected,
    measure_margin,
)
from lmr.core.streams import Streams

EPS = 1e-6


@st.composite
def draw_cases(draw: Any) -> dict[str, Any]:
    """Cosines [B, C], also of 1 and -1, a logit scale, and the arguments of the margin."""
    classes, count = draw(st.integers(2, 14)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    cosines = 2 * torch.rand(count, classes, generator=generator, dtype=torch.float64) - 1
    cosines = cosines * draw(st.sampled_from([0.05, 0.2, 1.0]))
    poles = torch.rand(count, classes, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    return {
        "cosines": torch.where(poles, cosines.sign(), cosines),
        "scale": draw(st.sampled_from([1.0, 10.0, 100.0, 1000.0])),
        "delta": draw(st.sampled_from([0.0, 0.03, 0.1, 0.5, 3.0])),
        "negatives": draw(st.integers(1, 16)),
        "positives": draw(st.sampled_from(["gap", "gap", "top1"])),
        "target": draw(st.floats(-5.0, 20.0)),
    }


@settings(max_examples=50, deadline=None)
@given(draw_cases(), st.sampled_from([torch.float64, torch.float32]))
def test_extremes_stay_finite(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Scales up to 1000, cosines of 1 and -1, two classes, every class protected."""
    cosines = case["cosines"].to(dtype)
    logits = (case["scale"] * cosines).requires_grad_()
    protected = find_protected(cosines, case["delta"], case["positives"])
    margin, negatives = measure_margin(logits, cosines, protected, case["negatives"], EPS)
    loss = torch.nn.functional.softplus(case["target"] - margin)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert all(value.isfinite().all() for value in (margin, loss, gradient))
    assert (gradient.abs().sum(1) <= 2.0001).all()
    weight = confidence_weight(logits, 0.3)
    assert ((weight >= 0) & (weight <= 1)).all()
    assert not margin[~negatives.any(1)].any()


def test_protection_by_gap_and_by_top() -> None:
    cosines = torch.tensor([[0.30, 0.28, 0.26, 0.30], [0.1, 0.2, 0.1875, 0.0]], dtype=torch.float64)
    assert find_protected(cosines, 0.03).int().tolist() == [[1, 1, 0, 1], [0, 1, 1, 0]]
    assert find_protected(cosines, 0.0).int().tolist() == [[1, 0, 0, 1], [0, 1, 0, 0]]
    assert find_protected(cosines, 0.0125).int().tolist() == [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert find_protected(cosines, 0.03, "top1").int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert find_protected(cosines, 2.0).all()


def test_gate_opens_at_tau() -> None:
    def stand(confidence: float) -> Tensor:
        return torch.tensor([[math.log(confidence / (1 - confidence)), 0.0]], dtype=torch.float64)

    assert confidence_weight(stand(0.6), 0.7).item() == 0
    assert confidence_weight(stand(0.85), 0.7).item() == pytest.approx(0.5)
    assert confidence_weight(stand(0.7 + 1e-9), 0.7).item() == pytest.approx(0.0, abs=1e-8)
    assert confidence_weight(torch.tensor([[1000.0, -1000.0]]), 0.7).item() == 1
    assert confidence_weight(torch.zeros(1, 2), 0.5).item() == 0
    assert confidence_weight(torch.zeros(1, 4), 0.0).item() == pytest.approx(0.25)
    assert not confidence_weight(torch.randn(3, 4, requires_grad=True), 0.1).requires_grad


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize(("gamma0", "beta"), [(4.0, 1.0), (0.3, 3.0)])
def test_fair_share_gets_gamma0(classes: int, gamma0: float, beta: float) -> None:
    """Every class holds 7 and the sample adds 0.5 of its own, which is left out."""
    mass, weight = torch.full((1, classes), 7.0).double(), torch.tensor([0.5]).double()
    mass[0, 1] += 0.5
    zero = torch.zeros(1, dtype=torch.int64)
    target = adapt_margin(mass, weight, torch.tensor([1]), Streams(zero[:1], zero), gamma0, beta, EPS).item()
    assert target == pytest.approx(gamma0, abs=2 * beta * classes * EPS)
