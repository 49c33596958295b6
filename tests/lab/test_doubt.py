"""Recorded streams and their replay: the same decisions as those of the watch that sees the images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lmr
from lab.doubt import Recording, count_alarms, describe, main, replay
from lmr.watch.health import Level
from lmr.watch.settings import Thresholds

COUNT = 640


def make_recording(*, spreads: bool) -> Recording:
    """A frozen model that is sure of one class in four of five images; the adapted one doubts it, or agrees."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (COUNT,), generator=generator)
    labels = torch.where(torch.rand(COUNT, generator=generator) < 0.8, 3, labels)
    frozen = 4.0 * torch.nn.functional.one_hot(labels, 10).float()
    return Recording("made", 8, frozen - spreads * frozen / 4, frozen, labels)


def test_doubt_is_noticed_and_acted_on_where_answers_spread() -> None:
    limits = Thresholds()
    found = replay(make_recording(spreads=True), torch.arange(COUNT), 0, limits)
    assert found[Level.SUSPECTED][0] == 4 * limits.doubt_least  # one image in four
    assert found[Level.RESET][0] == found[Level.SUSPECTED][0] + limits.doubt_confirm
    calm = replay(make_recording(spreads=False), torch.arange(COUNT), 0, limits)
    assert calm == {Level.SUSPECTED: [], Level.RESET: []}
    assert describe([make_recording(spreads=True)]).endswith("+0.0 to +0.0 | 16 of 16 | 16 | 16 of 16 | 16")
    assert (
        count_alarms([make_recording(spreads=False)] * 2, 50) == "2 long streams of 50 steps: 0 suspicions, 0 actions"
    )


def test_replay_decides_as_the_watch() -> None:
    """A small classifier that adapts with the published method on 80 % of one class, watched as it steps."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.tensor([[(-1.0) ** (i & j).bit_count() / 4 for j in range(16)] for i in range(1, 11)])
    labels = torch.randint(10, (COUNT,), generator=generator)
    labels = torch.where(torch.rand(COUNT, generator=generator) < 0.8, 5, labels)
    images = rows[labels] + 0.2 * torch.randn(COUNT, 16, generator=generator)
    clip = lmr.ZeroShot(torch.nn.LayerNorm(16), rows, 10.0)
    plain, watched = (lmr.create("lmr(preset='auto')", clip) for _ in range(2))
    guarded = lmr.Watched(watched)
    adapted = torch.cat([plain.step(batch).logits for batch in images.split(8)])
    for batch in images.split(8):
        guarded.step(batch)
    found = replay(Recording("made", 8, adapted, clip(images), labels), torch.arange(COUNT), 0, Thresholds())
    events = {event.after: 8 * event.step for event in reversed(guarded.events)}
    assert found[Level.RESET]
    assert (events[Level.SUSPECTED], events[Level.RESET]) == (found[Level.SUSPECTED][0], found[Level.RESET][0])


def test_command_records_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "photo-c@10", "--model", "photo", "--domains", "fog", "--dominant", "1", "--balanced"]
    options += ["--images", "32", "--batch-sizes", "16", "--out", str(tmp_path), "--steps", "2"]
    assert main(options) == 0
    first = capsys.readouterr().out
    assert len(list(tmp_path.glob("*.npz"))) == 2
    assert "| fog, balanced |" in first
    assert "| fog, 80 % class 1 |" in first
    assert "2 long streams of 2 steps: 0 suspicions, 0 actions" in first
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert main(options) == 0
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")} == stamps
