"""A worker of a bench, without Ray: what it hands over, and that nothing stays for the next run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.cluster import bench_actor
from lmr.cluster.bench_actor import BenchActor, CheckpointFiles, Progress
from lmr.cluster.nodes import list_versions
from lmr.cluster.ray_pool import RayPool
from lmr.core.errors import LmrError


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


def test_progress_that_was_not_read_goes_with_the_result(actor: BenchActor, task: Task, tmp_path: Path) -> None:
    """Progress that stayed would be read in the next run, and its checkpoint filed under that run."""
    result = actor.run(task, CheckpointFiles(b"", b"damaged"))
    assert result.row is not None
    assert actor.read_progress() == Progress()
    assert result.progress.images == 16
    assert result.progress.checkpoint is not None
    pool = RayPool(None, 1, 1, tmp_path, 0.0, {})
    events = list(pool.finish_job(0, task, result))
    assert [event.kind for event in events] == ["message", "progress", "done"]
    assert events[0].message.startswith("A checkpoint cannot be used, its run starts again")


def test_run_that_is_stopped_hands_over_its_checkpoint(
    actor: BenchActor, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = actor._note

    def stop_after_a_batch(messages: Sequence[str] = (), **changes: Any) -> None:
        actor.stopping = changes.get("images") == 8
        note(messages, **changes)

    monkeypatch.setattr(actor, "_note", stop_after_a_batch)
    result = actor.run(task, None)
    assert result.row is None
    RayPool(None, 1, 1, tmp_path, 0.0, {}).keep_unfinished(task, result)
    kept = CheckpointFiles.read(tmp_path, task.run)
    assert kept is not None
    monkeypatch.undo()
    actor.stopping = False
    rest = actor.run(task, kept)
    assert rest.row is not None
    assert rest.progress.messages == []  # the checkpoint was good


def test_run_without_memory_ends_the_worker_as_a_death_does(
    actor: BenchActor, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not at fault: another node may have the memory."""

    def fail(*given: object) -> None:
        try:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        except RuntimeError as error:
            raise LmrError("The encoder cannot take images of shape [8, 3, 32, 32].") from error

    monkeypatch.setattr(bench_actor, "run_task", fail)
    with pytest.raises(MemoryError, match="The encoder cannot take images"):
        actor.run(task, None)


def test_node_with_another_method_file_is_unfit(actor: BenchActor, task: Task, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    own = dataclasses.replace(task.entry, file=str(file), file_digest="that of the driver")
    missing = actor.run(dataclasses.replace(task, entry=own), None)
    assert missing.unfit
    assert "Cannot read the method file" in missing.message
    file.touch()
    other = actor.run(dataclasses.replace(task, entry=own), None)
    assert other.unfit
    assert other.message == f"Its method file {str(file)!r} is not that of the driver's machine."


def test_worker_finds_relative_paths_and_data_as_the_driver_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of a cluster start in the folder, and with the variables, of 'ray start'."""
    threads = torch.get_num_threads()
    monkeypatch.chdir("/")
    monkeypatch.setenv("LMR_DATA", "")  # so that it is as before at the end
    monkeypatch.delenv("LMR_DATA")
    for folder, data, found in ((tmp_path, "here", "here"), (tmp_path / "none", "there", "here")):
        BenchActor(1, 0.0, {}, str(folder), data).close()
        assert Path.cwd() == tmp_path
        assert os.environ["LMR_DATA"] == found  # a node that has a place of its own keeps it
    torch.set_num_threads(threads)


def test_failed_and_unfit_runs_leave_no_news(actor: BenchActor, task: Task) -> None:
    unfit = actor.run(dataclasses.replace(task, data_digest="another"), None)
    assert unfit.unfit
    failed = actor.run(dataclasses.replace(task, entry=dataclasses.replace(task.entry, watch="nonsense")), None)
    assert failed.row is None
    assert failed.message
    assert actor.read_progress() == Progress()
