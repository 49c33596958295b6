"""The watch costs at most 4 % of a step while nothing is suspected: by its rule for all methods, and counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
import small_world
from few_views import create
from lmr.watch import canaries as canaries_file
from lmr.watch import pace as module
from lmr.watch.canaries import Canaries, collect
from lmr.watch.health import Level
from lmr.watch.pace import YOUNG, Pace, find_pace, measure_step
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


def test_passes_are_counted_also_in_inference_mode() -> None:
    with torch.inference_mode():
        assert lmr.Watched(lmr.create("lmr", make_clip()[1])).pace == Pace(16, 20)


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


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("zeroshot", 1),
        ("zeroshot", 64),
        ("tent(lr=0.0)", 8),
        ("lmr(share=0.25, gamma0=0.3)", 8),
        ("lmr(gamma0=0.3)", 1),
        ("lmr(gamma0=0.3)", 64),
    ],
)
def test_counted_passes_are_within_4_percent(spec: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that the encoder sees outside of the steps of an older stream, between two checks of the canaries."""
    tower, clip = make_clip()
    method = lmr.create(spec, clip)
    watched = lmr.Watched(method, WatchSettings(canaries=8, thresholds=NEVER))
    images, step, own = torch.randn(512, 6).split(size), method.step, 0

    def count(*given: Any) -> lmr.Prediction:
        nonlocal own
        before = tower.seen
        answer = step(*given)
        own += tower.seen - before
        return answer

    canaries = collect(Canaries(), torch.cat(images), clip(torch.cat(images)).detach(), 8)
    assert len(canaries.labels) == 8
    watched.watches[0] = dataclasses.replace(watched.watches[0], canaries=canaries, images=YOUNG)
    monkeypatch.setattr(method, "step", count)
    tower.seen = 0
    monkeypatch.setattr(canaries_file, "STEPS", 40)  # which makes checks more frequent
    steps = max(41, 1 - (-8 * watched.pace.spacing // size))  # a check comes in the last of them at the latest
    for k in range(steps):
        watched.step(images[k % len(images)])
    assert watched.health == [Level.OK]
    assert len(watched.watches[0].canaries.history) == 1
    assert own >= steps * size
    assert 0 < tower.seen - own <= 0.04 * measure_step(method) * steps * size + 1  # the first image is compared
