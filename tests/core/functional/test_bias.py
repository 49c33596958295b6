"""Bias correction against its definition, and the identities it rests on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmr.core.functional.margin import correct_bias

quick = settings(max_examples=50, deadline=None)
EPS = 1e-6


@st.composite
def draw_states(draw: Any) -> dict[str, Any]:
    """Bias and running prediction of A streams, and the mean prediction of their batch: [A, C] each."""
    streams, classes = draw(st.integers(1, 3)), draw(st.integers(2, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    sharp = draw(st.sampled_from([0.5, 5.0, 500.0]))
    bias = torch.randn(streams, classes, generator=generator, dtype=torch.float64)
    return {
        "bias": bias - bias.mean(1, keepdim=True),
        "running": (sharp * torch.randn(streams, classes, generator=generator, dtype=torch.float64)).softmax(1),
        "mean": (sharp * torch.randn(streams, classes, generator=generator, dtype=torch.float64)).softmax(1),
        "seen": torch.rand(streams, generator=generator) < 0.6,
        "eta": draw(st.sampled_from([0.0, 0.05, 0.5])),
        "mu": draw(st.sampled_from([0.0, 0.8, 0.99])),
        "clip": draw(st.sampled_from([0.0, 0.3, 2.0, 1e9])),
    }


def correct(case: dict[str, Any], **changes: Any) -> tuple[Tensor, Tensor]:
    given_ = case | changes
    names = ("bias", "running", "seen", "mean", "eta", "mu", "clip")
    return correct_bias(*(given_[name] for name in names), EPS, given_.get("prior"))


@quick
@given(draw_states())
def test_definition_class_by_class(case: dict[str, Any]) -> None:
    bias, running = correct(case)
    streams, classes = bias.shape
    for a in range(streams):
        old, new = case["running"][a].tolist(), case["mean"][a].tolist()
        mixed = [case["mu"] * o + (1 - case["mu"]) * n for o, n in zip(old, new, strict=True)]
        mixed = mixed if case["seen"][a] else new
        moved = [b - case["eta"] * math.log(u + EPS) for b, u in zip(case["bias"][a].tolist(), mixed, strict=True)]
        centred = [b - sum(moved) / classes for b in moved]
        assert running[a].tolist() == pytest.approx(mixed, abs=1e-14)
        assert bias[a].tolist() == pytest.approx([min(max(b, -case["clip"]), case["clip"]) for b in centred], abs=1e-12)


@quick
@given(draw_states())
def test_odds_change_by_the_difference_of_biases(case: dict[str, Any]) -> None:
    bias, _ = correct(case)
    logits = 3 * case["mean"]
    before, after = logits.softmax(1), (logits + bias).softmax(1)
    for a, row in enumerate(bias.tolist()):
        for c in range(len(row)):
            for j in range(len(row)):
                odds = before[a, c].item() / before[a, j].item() * math.exp(row[c] - row[j])
                assert after[a, c].item() / after[a, j].item() == pytest.approx(odds, rel=1e-9)


def test_first_batch_starts_the_running_prediction() -> None:
    mean = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]])
    old = torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.1, 0.8]])
    _, running = correct_bias(torch.zeros(2, 3), old, torch.tensor([False, True]), mean, 0.05, 0.75, 2.0, EPS)
    assert torch.equal(running[0], mean[0])
    assert running[1].tolist() == pytest.approx([0.25, 0.125, 0.625])


def test_clip_holds_in_the_long_run() -> None:
    """One class takes everything for a thousand batches: the bias stands at the clip and is finite."""
    bias, running = torch.zeros(1, 4), torch.zeros(1, 4)
    mean = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    for t in range(1000):
        bias, running = correct_bias(bias, running, torch.tensor([t > 0]), mean, 0.05, 0.8, 2.0, EPS)
    assert bias[0, 0].item() == -2
    assert bias.isfinite().all()
    assert bias.abs().max() <= 2


@quick
@given(draw_states())
def test_equal_shares_as_prior_are_the_published_method(case: dict[str, Any]) -> None:
    classes = case["bias"].shape[1]
    expected = correct(case, clip=1e9)
    for prior in (torch.full((classes,), 1 / classes), torch.full_like(case["bias"], 1 / classes)):
        for found, value in zip(correct(case, clip=1e9, prior=prior.double()), expected, strict=True):
            assert torch.allclose(found, value, rtol=0, atol=1e-12)


@quick
@given(draw_states())
def test_prediction_of_the_given_shares_changes_no_bias(case: dict[str, Any]) -> None:
    """Each stream has shares of its own."""
    prior = 0.01 / case["mean"].shape[1] + 0.99 * case["mean"]
    bias, _ = correct(case, mean=prior - EPS, seen=torch.zeros_like(case["seen"]), clip=1e9, prior=prior)
    assert torch.allclose(bias, case["bias"], rtol=0, atol=1e-12)
