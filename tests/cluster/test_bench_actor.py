"""A member of the crew of a bench, without Ray: what it hands over, and that nothing stays for the next run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.cluster.bench_actor import BenchActor, CheckpointFiles, News
from lmr.cluster.nodes import list_versions
from lmr.cluster.ray_crew import RayCrew


@pytest.fixture
def actor() -> Iterator[BenchActor]:
    threads = torch.get_num_threads()
    made = BenchActor(1, 0.0, list_versions())
    yield made
    made.close()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def task() -> Task:
    table = {"methods": "lmr", "datasets": "pocket-c", "backbones": "pocket", "corruptions": "fog", "images": 16}
    return list_tasks([parse_plan("test", "", Path(), table | {"batch_sizes": 8})])[0]


def test_news_that_nobody_asked_for_go_with_the_result(actor: BenchActor, task: Task, tmp_path: Path) -> None:
    """News that stayed would be read in the next run, and its checkpoint filed under that run."""
    result = actor.run(task, CheckpointFiles(b"", b"damaged"))
    assert result.row is not None
    assert actor.read_news() == News()
    assert result.news.images == 16
    assert result.news.checkpoint is not None
    crew = RayCrew(None, 1, 1, tmp_path, 0.0, {})
    events = list(crew.finish_job(0, task, result))
    assert [event.kind for event in events] == ["word", "progress", "done"]
    assert events[0].words.startswith("A checkpoint cannot be used, its run starts again")


def test_run_that_is_stopped_hands_over_its_checkpoint(
    actor: BenchActor, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = actor._note

    def stop_after_a_batch(words: Sequence[str] = (), **changes: Any) -> None:
        actor.stopping = changes.get("images") == 8
        note(words, **changes)

    monkeypatch.setattr(actor, "_note", stop_after_a_batch)
    result = actor.run(task, None)
    assert result.row is None
    RayCrew(None, 1, 1, tmp_path, 0.0, {}).keep_unfinished(task, result)
    kept = CheckpointFiles.read(tmp_path, task.run)
    assert kept is not None
    monkeypatch.undo()
    actor.stopping = False
    rest = actor.run(task, kept)
    assert rest.row is not None
    assert rest.news.words == []  # the checkpoint was good


def test_failed_and_unfit_runs_leave_no_news(actor: BenchActor, task: Task) -> None:
    unfit = actor.run(dataclasses.replace(task, data_digest="another"), None)
    assert unfit.unfit
    failed = actor.run(dataclasses.replace(task, contender=dataclasses.replace(task.contender, watch="nonsense")), None)
    assert failed.row is None
    assert failed.words
    assert actor.read_news() == News()
