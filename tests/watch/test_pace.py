"""The watch costs at most a 32nd of a step while nothing is suspected: by its rule, and counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
from lmr.watch import watched as module
from lmr.watch.health import Level
from lmr.watch.settings import Thresholds, WatchSettings
from lmr.watch.watched import YOUNG, measure_step

NEVER = Thresholds(concentration=0, entropy=0, drift=1e9)


class CountingTower(nn.Module):
    """Vectors [B, 6] to features [B, 6]; counts the images it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.blocks(x)


def make_clip() -> tuple[CountingTower, lmr.ZeroShot]:
    torch.manual_seed(1)
    tower = CountingTower()
    return tower, lmr.ZeroShot(tower, torch.randn(40, 6), logit_scale=100.0)


@pytest.mark.parametrize(
    ("spec", "step", "every"),
    [
        ("lmr", 3.0, 16),
        ("tent", 2.0, 16),
        ("lmr_variants(emit='before')", 2.0, 16),
        ("lmr_variants(share=0.25)", 1.5, 22),
        ("zeroshot", 1.0, 32),
    ],
)
def test_pace_follows_from_the_cost_of_a_step(spec: str, step: float, every: int) -> None:
    with torch.inference_mode():  # passes are counted there, too
        method = lmr.create(spec, make_clip()[1])
        assert measure_step(method) == pytest.approx(step)
        assert lmr.Watched(method).every == every


def test_method_whose_passes_cannot_be_counted_is_assumed_to_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "count_passes", lambda method: None)
    assert lmr.Watched(lmr.create("tent", make_clip()[1])).every == 32


@pytest.mark.parametrize(("spec", "size"), [("zeroshot", 64), ("tent(lr=0.0)", 8), ("lmr(gamma0=0.3)", 1)])
def test_counted_passes_are_within_a_32nd(spec: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that the encoder sees outside of the steps of an older stream."""
    tower, clip = make_clip()
    method = lmr.create(spec, clip)
    watched = lmr.Watched(method, WatchSettings(thresholds=NEVER))
    images, step, own = torch.randn(512, 6).split(size), method.step, 0

    def count(*given: Any) -> lmr.Prediction:
        nonlocal own
        before = tower.seen
        answer = step(*given)
        own += tower.seen - before
        return answer

    watched.watches[0] = dataclasses.replace(watched.watches[0], images=YOUNG)
    monkeypatch.setattr(method, "step", count)
    every, tower.seen = watched.every, 0
    for k in range(41):
        watched.step(images[k % len(images)])
    assert watched.health == [Level.OK]
    assert tower.seen - own == -(-41 * size // every)
    assert tower.seen - own <= measure_step(method) * 41 * size / 32 + 1  # the first image is compared
