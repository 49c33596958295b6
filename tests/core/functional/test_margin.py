"""The identities of LMR's margin (appendix of the paper), each against sums written out over samples and classes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
    restoration_loss,
)
from lmr.core.streams import Streams

quick = settings(max_examples=50, deadline=None)
EPS = 1e-6


@st.composite
def draw_cases(draw: Any, extreme: bool = False) -> dict[str, Any]:
    """Cosines [B, C] of random spread, a logit scale, and the arguments of the margin."""
    classes, count = draw(st.integers(2, 14)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    cosines = 2 * torch.rand(count, classes, generator=generator, dtype=torch.float64) - 1
    cosines = cosines * draw(st.sampled_from([0.05, 0.2, 1.0]))
    if extreme:
        share = draw(st.sampled_from([0.0, 0.5, 1.0]))
        poles = torch.rand(count, classes, generator=generator) < share
        cosines = torch.where(poles, cosines.sign(), cosines)
    return {
        "cosines": cosines,
        "scale": draw(st.sampled_from([1.0, 10.0, 100.0, 1000.0] if extreme else [1.0, 10.0, 100.0])),
        "delta": draw(st.sampled_from([0.0, 0.03, 0.1, 0.5, 3.0])),
        "negatives": draw(st.integers(1, 16)),
        "positives": draw(st.sampled_from(["gap", "gap", "top1"])),
        "target": draw(st.floats(-5.0, 20.0)),
    }


def split_classes(row: list[float], case: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The protected classes and the hard negatives of one sample, by their definitions."""
    top = max(range(len(row)), key=lambda c: row[c])
    near = [c for c in range(len(row)) if row[c] >= row[top] - case["delta"]]
    protected = [top] if case["positives"] == "top1" else near
    outside = sorted((c for c in range(len(row)) if c not in protected), key=lambda c: -row[c])
    return protected, outside[: case["negatives"]]


def measure_by_hand(row: list[float], case: dict[str, Any]) -> tuple[float, dict[int, float], dict[int, float]]:
    """Margin of one sample, the weights pi+ over its protected set and pi- over its negatives (all logits shifted)."""
    protected, negatives = split_classes(row, case)
    powers = [math.exp(case["scale"] * (s - max(row))) for s in row]
    posterior = [power / sum(powers) for power in powers]
    alpha = {c: posterior[c] / (sum(posterior[j] for j in protected) + EPS) for c in protected}
    positive = sum(alpha[c] * powers[c] for c in protected)
    negative = sum(powers[c] for c in negatives)
    margin = math.log(positive) - math.log(negative / len(negatives)) if negatives else 0.0
    plus = {c: alpha[c] * powers[c] / positive for c in protected}
    return margin, plus, {c: powers[c] / negative for c in negatives}


class LocalMargin(NamedTuple):
    """The library's margin of every sample and the two sets it separates."""

    margin: Tensor
    protected: Tensor
    negatives: Tensor


def make_streams(index: Tensor, count: int) -> Streams:
    return Streams(torch.arange(count), index)


def differentiate(case: dict[str, Any]) -> tuple[LocalMargin, Tensor, Tensor]:
    """The library's margin, its loss softplus(target - margin) [B] and the loss's gradient on the logits."""
    logits = (case["scale"] * case["cosines"]).requires_grad_()
    protected = find_protected(case["cosines"], case["delta"], case["positives"])
    margin, negatives = measure_margin(logits, case["cosines"], protected, case["negatives"], EPS)
    loss = torch.nn.functional.softplus(case["target"] - margin)
    return LocalMargin(margin, protected, negatives), loss.detach(), torch.autograd.grad(loss.sum(), logits)[0]


@quick
@given(draw_cases())
def test_margin_and_sets_are_the_definitions(case: dict[str, Any]) -> None:
    local, _, _ = differentiate(case)
    for i, row in enumerate(case["cosines"].tolist()):
        protected, negatives = split_classes(row, case)
        assert local.protected[i].nonzero().flatten().tolist() == protected
        assert local.negatives[i].nonzero().flatten().tolist() == sorted(negatives)
        assert local.margin[i].item() == pytest.approx(measure_by_hand(row, case)[0], rel=1e-11, abs=1e-11)


@quick
@given(draw_cases())
def test_gradient_is_the_closed_form(case: dict[str, Any]) -> None:
    """-nu pi+ on the protected set, +nu pi- on the negatives, exactly 0 elsewhere; the parts sum to -nu and +nu."""
    local, _, gradient = differentiate(case)
    for i, row in enumerate(case["cosines"].tolist()):
        margin, plus, minus = measure_by_hand(row, case)
        nu = 1 / (1 + math.exp(margin - case["target"]))
        if not minus:
            assert not gradient[i].any()
            continue
        for c in range(len(row)):
            if c in plus or c in minus:
                expected = -nu * plus[c] if c in plus else nu * minus[c]
                assert gradient[i, c].item() == pytest.approx(expected, rel=1e-9, abs=1e-14)
            else:
                assert gradient[i, c].item() == 0.0
        assert gradient[i][local.protected[i]].sum().item() == pytest.approx(-nu, rel=1e-9, abs=1e-14)
        assert gradient[i][local.negatives[i]].sum().item() == pytest.approx(nu, rel=1e-9, abs=1e-14)
        assert (gradient[i][local.protected[i]] <= 0).all()
        assert (gradient[i][local.negatives[i]] >= 0).all()


@quick
@given(draw_cases(extreme=True), st.sampled_from([torch.float64, torch.float32]))
def test_extremes_stay_finite(case: dict[str, Any], dtype: torch.dtype) -> None:
    """Scales up to 1000, cosines of 1 and -1, two classes, every class protected."""
    case["cosines"] = case["cosines"].to(dtype)
    local, loss, gradient = differentiate(case)
    assert local.margin.isfinite().all()
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    assert (gradient.abs().sum(1) <= 2.0001).all()
    weight = confidence_weight(case["scale"] * case["cosines"], 0.3)
    assert ((weight >= 0) & (weight <= 1)).all()
    assert not local.margin[~local.negatives.any(1)].any()


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("scale", [100.0, 1000.0])
def test_all_classes_protected_is_no_margin(classes: int, scale: float) -> None:
    cosines = torch.linspace(-1, 1, classes, dtype=torch.float64).repeat(2, 1)
    case = {"cosines": cosines, "scale": scale, "delta": 2.0, "negatives": 5, "positives": "gap", "target": 4.0}
    local, loss, gradient = differentiate(case)
    assert local.protected.all()
    assert not local.negatives.any()
    assert local.margin.tolist() == [0.0, 0.0]
    assert loss.isfinite().all()
    assert not gradient.any()


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


@st.composite
def draw_streams(draw: Any) -> dict[str, Any]:
    """Mass before the batch [A, C], and weight, class and stream of each of its samples."""
    streams, classes, count = draw(st.integers(1, 3)), draw(st.integers(2, 8)), draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    weight = torch.rand(count, generator=generator, dtype=torch.float64)
    return {
        "before": draw(st.sampled_from([0.0, 1.0, 50.0])) * torch.rand(streams, classes, generator=generator).double(),
        "weight": weight * (torch.rand(count, generator=generator) < 0.7),
        "top": torch.randint(classes, (count,), generator=generator),
        "index": torch.randint(streams, (count,), generator=generator),
        "gamma0": draw(st.sampled_from([0.3, 4.0])),
        "beta": draw(st.sampled_from([0.0, 1.0, 3.0])),
    }


@quick
@given(draw_streams())
def test_target_reads_the_mass_without_the_sample(case: dict[str, Any]) -> None:
    """The whole batch counts first; then each sample's own weight is left out of its share, stream by stream."""
    weight, top, index = case["weight"], case["top"], case["index"]
    streams, classes = case["before"].shape
    mass = case["before"].tolist()
    for w, c, a in zip(weight.tolist(), top.tolist(), index.tolist(), strict=True):
        mass[a][c] += w
    counted = torch.tensor(mass, dtype=torch.float64)
    target = adapt_margin(counted, weight, top, make_streams(index, streams), case["gamma0"], case["beta"], EPS)
    for i, (w, c, a) in enumerate(zip(weight.tolist(), top.tolist(), index.tolist(), strict=True)):
        share = max(mass[a][c] - w, 0.0) / (sum(mass[a]) - w + EPS)
        expected = case["gamma0"] - case["beta"] * (math.log(classes) + math.log(share + EPS))
        assert target[i].item() == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize(("gamma0", "beta"), [(4.0, 1.0), (0.3, 3.0)])
def test_fair_share_gets_gamma0(classes: int, gamma0: float, beta: float) -> None:
    """Every class holds 7 and the sample adds 0.5 of its own, which is left out."""
    mass, weight = torch.full((1, classes), 7.0).double(), torch.tensor([0.5]).double()
    mass[0, 1] += 0.5
    zero = torch.zeros(1, dtype=torch.int64)
    target = adapt_margin(mass, weight, torch.tensor([1]), make_streams(zero, 1), gamma0, beta, EPS).item()
    assert target == pytest.approx(gamma0, abs=2 * beta * classes * EPS)


@quick
@given(draw_streams(), st.floats(-3.0, 9.0))
def test_loss_is_each_streams_own_average(case: dict[str, Any], target: float) -> None:
    weight, index = case["weight"], case["index"]
    streams = len(case["before"])
    margin = torch.linspace(-2, 7, len(weight), dtype=torch.float64)
    margin.requires_grad_()
    loss, gradient = restoration_loss(
        margin, torch.full_like(weight, target), weight, make_streams(index, streams), EPS
    )
    assert torch.allclose(torch.autograd.grad(loss.sum(), margin)[0], gradient, rtol=1e-12, atol=1e-15)
    margin = margin.detach()
    for a in range(streams):
        own = [i for i in range(len(weight)) if index[i] == a]
        lost = sum(weight[i].item() * math.log1p(math.exp(target - margin[i].item())) for i in own)
        assert loss[a].item() == pytest.approx(lost / (sum(weight[i].item() for i in own) + EPS), rel=1e-12, abs=1e-12)
