"""The switch that a budget chooses: within the budget, the best of those, and never one that was not asked for."""

from __future__ import annotations

import pytest
import torch

import lmr
from lmr.apps.predict.budget import NEAR, choose_switch
from lmr.bench.flops import count_forwards
from lmr.core.classifier import ZeroShot
from lmr.core.registry import find_method


@pytest.fixture
def clip(real_models: None) -> ZeroShot:
    """With as many norms and blocks as the real model, whose costs are compared."""
    return lmr.load("pocket").classifier(["red star", "blue ring", "green square"])


@pytest.mark.parametrize("budget", [1, 1.25, 1.5, 2, 3])
def test_the_best_within_the_budget(clip: ZeroShot, budget: float) -> None:
    chosen = choose_switch("lmr(lr=5e-4)", clip, budget, 64)
    assert chosen.forwards <= budget + NEAR
    assert chosen.forwards == count_forwards(chosen.method, 64)
    assert "lr=0.0005" in chosen.method.spec
    better = [switch for switch in find_method("lmr").card.switches if switch.kept > chosen.kept]
    for switch in better:
        assert (count_forwards(lmr.create("lmr", clip, **switch.values), 64) or 0) > budget + NEAR


def test_default_method_has_the_bias_alone_for_one_forward_and_a_share_of_the_images_for_more(clip: ZeroShot) -> None:
    chosen = [choose_switch("steady", clip, budget, 64) for budget in (1, 1.25, 1.5, 3)]
    assert [one.values for one in chosen] == [{"lr": 0.0}, {"share": 0.25}, {"share": 0.5}, {}]
    assert [one.forwards for one in chosen] == pytest.approx([1, 1.25, 1.5, 2], abs=NEAR)


def test_single_images_all_teach(clip: ZeroShot) -> None:
    """A quarter of one image is one image: the switch saves nothing there, and is not said to."""
    assert choose_switch("lmr", clip, 1.5, 64).values == {"share": 0.25}
    assert choose_switch("lmr", clip, 1.5, 8).values == {"share": 0.25}
    assert "share" not in choose_switch("lmr", clip, 1.5, 1).values
    assert choose_switch("lmr", clip, 1.5, 2).values == {"share": 0.25, "emit": "before"}  # of two images one teaches
    whole, share = (count_forwards(lmr.create(spec, clip), 1) for spec in ("lmr", "lmr(share=0.25)"))
    assert share == pytest.approx(whole)


def test_more_budget_never_keeps_less(clip: ZeroShot) -> None:
    kept = [choose_switch("lmr", clip, budget / 10, 64).kept for budget in range(10, 35)]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1]


def test_what_cannot_be_chosen_is_refused(clip: ZeroShot) -> None:
    with pytest.raises(lmr.LmrError, match=r"costs 0.5 forwards or less; the cheapest costs 1.00"):
        choose_switch("lmr", clip, 0.5, 64)
    with pytest.raises(lmr.LmrError, match="tent has no measured switches"):
        choose_switch("tent", clip, 2, 64)
    with pytest.raises(lmr.LmrError, match="decides 'share' itself"):
        choose_switch("lmr(share=0.5)", clip, 2, 64)
    for wrong in (0, -1, float("nan"), float("inf"), True, "1"):
        with pytest.raises(lmr.LmrError, match="positive number of forwards"):
            choose_switch("lmr", clip, wrong, 64)  # type: ignore[arg-type]


def test_a_module_without_blocks_has_the_other_switches() -> None:
    torch.manual_seed(0)
    tower = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.LayerNorm(5))
    chosen = choose_switch("lmr", ZeroShot(tower, torch.randn(3, 5)), 1.5, 8)
    assert "blocks" not in chosen.method.spec
    assert chosen.forwards <= 1.5
