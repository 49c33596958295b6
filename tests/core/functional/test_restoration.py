"""What LMR sees of each sample, and what a batch makes of it: parts, slopes and masses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lmr.core.functional.restoration import MarginLook, look_at_margins, weigh_margins

INDEX = torch.tensor([0, 1, 0, 1, 1, 0])


def look(cosines: Tensor) -> MarginLook:
    return look_at_margins(20 * cosines, cosines, delta=0.05, negatives=2, tau=0.9, eps=1e-6, positives="gap")


@pytest.fixture
def cosines() -> Tensor:
    return torch.rand(6, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.5


def test_a_sample_is_looked_at_without_the_rest_of_its_batch(cosines: Tensor) -> None:
    whole = look(cosines)
    for values, pieces in zip(whole, zip(*(look(one) for one in cosines.split([1, 3, 2])), strict=True), strict=True):
        assert torch.equal(values, torch.cat(pieces))
    assert torch.equal(whole.passes, whole.weight > 0)
    assert 0 < int(whole.passes.sum()) < 6


def test_a_sample_whose_classes_are_all_protected_has_no_weight() -> None:
    even = torch.full((1, 5), 0.2, dtype=torch.float64)
    sure = even.clone()
    sure[0, 2] = 0.9
    assert look_at_margins(9 * even, even, 0.5, 2, 0.0, 1e-6, "gap").passes.tolist() == [False]
    assert look(sure).passes.tolist() == [True]


@pytest.mark.parametrize("adaptive", [True, False])
def test_loss_and_slope_follow_from_the_definition(cosines: Tensor, adaptive: bool) -> None:
    """Computed sample by sample: the share of a sample's class in the mass of its stream decides its target."""
    before = torch.arange(10, dtype=torch.float64).view(2, 5) / 3
    seen = look(cosines)
    found = weigh_margins(seen, INDEX, before, 0.7, 1.3, 1e-6, adaptive)
    for stream in (0, 1):
        own = [k for k in range(6) if INDEX[k] == stream]
        mass = before[stream].clone()
        for k in own:
            mass[seen.top[k]] += seen.weight[k]
        assert torch.allclose(found.mass[stream], mass, atol=1e-12)
        whole, loss = sum(float(seen.weight[k]) for k in own) + 1e-6, 0.0
        for k in own:
            weight, target = float(seen.weight[k]), 0.7
            if adaptive:
                share = (float(mass[seen.top[k]]) - weight) / (float(mass.sum()) - weight + 1e-6)
                target -= 1.3 * (math.log(5) + math.log(share + 1e-6))
            missing = target - float(seen.margin.detach()[k])
            loss += weight * math.log1p(math.exp(missing)) / whole
            assert float(found.slope[k]) == pytest.approx(-weight / (1 + math.exp(-missing)) / whole, abs=1e-12)
        assert float(found.loss[stream]) == pytest.approx(loss, abs=1e-12)
