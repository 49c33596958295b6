"""Doubt: the alarm for answers that spread away from a class that really dominates, on streams that are made here.

A small classifier of ten classes adapts with the published method. Its images are a prototype and noise. "majority" has
80 % of one class, "balanced" all classes alike. In "biased" the classes are alike too, but the images are bad, and the
frozen model takes most of them for one class without being sure: there adapting helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
from lmr.watch.health import Level
from lmr.watch.settings import Thresholds, WatchSettings

CLASSES, WIDTH, MAIN, FALSE = 10, 16, 5, 6
SETTINGS = WatchSettings(every=4, thresholds=Thresholds(confirm=64))
# Rows of a Hadamard matrix, at right angles, which a LayerNorm leaves as they are: prototypes, and what no class has.
ROWS = torch.tensor([[(-1.0) ** (i & j).bit_count() / 4 for j in range(WIDTH)] for i in range(1, CLASSES + 2)])
PROTOTYPES, FOG = ROWS[:CLASSES], ROWS[CLASSES]


def make_clip() -> lmr.ZeroShot:
    return lmr.ZeroShot(nn.LayerNorm(WIDTH), PROTOTYPES, 10.0)


def make_stream(kind: str, count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return images [count, 16] and their labels [count]."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    if kind == "majority":
        labels = torch.where(torch.rand(count, generator=random) < 0.8, MAIN, labels)
    shown, noise = PROTOTYPES[labels], torch.randn(count, WIDTH, generator=random)
    if kind == "biased":
        return 0.2 * shown + 0.3 * PROTOTYPES[FALSE] + 0.12 * noise + FOG, labels
    return shown + 0.2 * noise, labels


def watch(watched: lmr.Watched, images: Tensor) -> Iterator[tuple[int, Any]]:
    """Step through a stream in batches of eight; yield the images so far and the answer."""
    for first in range(0, len(images), 8):
        yield first + 8, watched.step(images[first : first + 8])


@pytest.mark.parametrize("kind", ["majority", "balanced", "biased"])
def test_only_answers_that_leave_a_true_majority_are_an_alarm(kind: str) -> None:
    clip, (images, labels) = make_clip(), make_stream(kind, 256)
    watched = lmr.Watched(lmr.create("lmr(preset='auto')", clip), SETTINGS)
    plain = lmr.create("lmr(preset='auto')", clip)
    frozen = float((clip(images).argmax(1) == labels).double().mean())
    right, events = [], []
    for end, answer in watch(watched, images):
        right.append(plain.step(images[end - 8 : end]).labels == labels[end - 8 : end])
        events += [(end, event["after"], event["alarms"]) for event in answer.info["events"]]
    gain = float(torch.cat(right).double().mean()) - frozen
    if kind == "majority":
        assert gain < -0.005
        (noticed, level, alarms), (acted, after, _) = events[:2]
        assert (level, alarms, after) == (Level.SUSPECTED, ["doubt"], Level.RESET)
        assert noticed <= 4 * SETTINGS.thresholds.doubt_least + 8
        assert acted == noticed + SETTINGS.thresholds.confirm
    else:
        assert events == []
        assert gain > (0.05 if kind == "biased" else -0.005)
