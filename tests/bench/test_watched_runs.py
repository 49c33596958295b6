"""Watched runs in the bench: entries, hashes, rows, resuming, and lines of their own in reports."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from lmr import LmrError
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.row import Row, read_samples
from lmr.bench.running.run import Stop, run_task
from lmr.cli.parser import parse
from lmr.watch.settings import read_watch

pytestmark = pytest.mark.usefixtures("tiny_models")
SMALL = {"datasets": "photo-c", "backbones": "photo", "corruptions": "clean", "images": 24, "batch_sizes": 4}
EAGER = "watch(every=1, entropy=1e6, spread=1e6, entropy_ratio=0, least=1, confirm=2, rest=1)"  # alarmed by everything


def list_small(**changes: Any) -> list[Task]:
    return list_tasks([parse_plan("test", "", Path(), SMALL | changes)])


def test_watch_makes_another_run_and_leaves_the_hash_of_the_plain_one() -> None:
    (plain,) = list_small(methods="lmr")
    off, on, other = list_small(methods="lmr", watch=["off", "on", "watch(every=8)"])
    assert off == plain
    assert [task.entry.label for task in (off, on, other)] == ["LMR", "LMR, watched", "LMR, watched (every=8)"]
    assert len({task.run for task in (off, on, other)}) == 3
    assert on.entry.spec == off.entry.spec
    settings = read_watch(other.entry.watch)
    assert settings is not None
    assert settings.every == 8


def test_command_of_a_watched_run_repeats_it() -> None:
    (task,) = list_small(methods="lmr", watch="watch(every=8)")
    options = parse(["bench", *shlex.split(task.command)[2:]])
    again = list_small(methods=options.methods, **dict(options.set))
    assert [other.run for other in again] == [task.run]


def test_unusable_watch_is_refused_before_anything_runs() -> None:
    with pytest.raises(LmrError, match=r"In the plan 'test': Expected on, report, off or watch"):
        list_small(methods="lmr", watch="yes")
    with pytest.raises(LmrError, match="none twice in watch"):
        list_small(methods="lmr", watch=["on", "on"])


def test_stopped_watched_run_resumes_to_the_same_row(tmp_path: Path) -> None:
    (task,) = list_small(methods="tent", watch=EAGER)
    whole = run_task(task, tmp_path / "whole")
    assert whole.watch["spec"] == task.entry.watch
    assert whole.watch["first event"] == 1
    assert whole.watch["to reset"] >= 1

    def stop(images: int) -> None:
        if images >= 12:
            raise Stop

    with pytest.raises(Stop):
        run_task(task, tmp_path / "parts", stop)
    again = run_task(task, tmp_path / "parts")
    assert again.compare() == whole.compare()
    samples = [read_samples(tmp_path / name, task.run)["predicted"].tolist() for name in ("whole", "parts")]
    assert samples[0] == samples[1]
    assert Row.from_json(whole.to_json()).watch == whole.watch
