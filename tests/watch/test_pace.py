"""The watch costs at most 4 % of a step while nothing is suspected: by its rule for all methods, and counted."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import lmr
import small_world
from few_views import create
from lmr.watch import pace as module
from lmr.watch.health import Level
from lmr.watch.pace import Pace, find_pace, measure_step
from lmr.watch.settings import Thresholds, WatchSettings

NEVER = Thresholds(concentration=0, entropy=0, canary_agreement=0, canary_fall=9, drift=1e9)


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
    ("spec", "step", "pace"),
    [
        ("lmr", 3.0, Pace(16, 20)),
        ("tent", 2.0, Pace(16, 58)),
        ("lmr(emit='before')", 2.0, Pace(16, 58)),
        ("lmr(share=0.25)", 1.5, Pace(22, 69)),
        ("zeroshot", 1.0, Pace(32, 115)),
    ],
)
def test_pace_follows_from_the_cost_of_a_step(spec: str, step: float, pace: Pace) -> None:
    method = lmr.create(spec, make_clip()[1])
    assert measure_step(method) == pytest.approx(step)
    assert find_pace(method) == pace


@pytest.mark.parametrize("name", lmr.list_methods())
def test_watch_costs_at_most_a_25th_of_a_step_of_every_method(name: str) -> None:
    """A canary costs no more than the rule assumes, and with that all together is within 4 %."""
    clip = small_world.make_classifier()
    seen = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal seen
        seen += len(inputs[0])

    method = create(name, clip)
    pace, step = find_pace(method), measure_step(method)
    method.step(small_world.make_images(0))
    clip.encoder.register_forward_pre_hook(count)
    method.predict(small_world.make_images(1))
    canary = seen / 8
    assert canary <= (step if method.memory_span != "stream" or method.takes_views else 1.0)
    assert pace.every >= 16
    assert 1 / pace.every + canary / pace.spacing <= 0.04 * step


def test_method_whose_passes_cannot_be_counted_is_assumed_to_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "count_passes", lambda method: None)
    assert find_pace(lmr.create("tent", make_clip()[1])) == Pace(32, 115)


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("spec", ["zeroshot", "tent(lr=0.0)", "lmr(share=0.25, gamma0=0.3)", "lmr(gamma0=0.3)"])
def test_counted_passes_are_within_4_percent(spec: str, size: int) -> None:
    """Images that the encoder sees beyond those of the plain method, from one check of the canaries to the next."""
    counts = []
    for watch in (False, True):
        tower, clip = make_clip()
        plain = lmr.create(spec, clip)
        cost = measure_step(plain)
        method = lmr.Watched(plain, WatchSettings(canaries=8, thresholds=NEVER)) if watch else plain
        images = torch.randn(64 * 8, 6).split(size)
        for part in images:
            method.step(part)
        if isinstance(method, lmr.Watched):
            kept = method.watches[0].canaries
            assert len(kept.labels) == 8
            method.watches[0] = dataclasses.replace(
                method.watches[0], canaries=dataclasses.replace(kept, steps=0, passed=0)
            )
        tower.seen = 0
        steps = max(201, 1 + -(-8 * 115 // size))  # a check comes in the last of them at the latest
        for k in range(steps):
            method.step(images[k % len(images)])
        counts.append(tower.seen)
        if isinstance(method, lmr.Watched):
            assert method.health == [Level.OK]
            assert method.watches[0].canaries.history
    assert 0 < counts[1] - counts[0] <= 0.04 * cost * steps * size + 1  # the first image is compared
