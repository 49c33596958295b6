from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.row import Row
from lmr.bench.running.run import run_task
from lmr.bench.running.workers import Event, WorkerPool, choose_task


def make_tasks(**changes: Any) -> list[Task]:
    table = {
        "methods": "zeroshot",
        "datasets": "photo-c",
        "backbones": "photo",
        "corruptions": ["fog", "snow"],
        "images": 32,
    }
    return list_tasks([parse_plan("test", "", Path(), table | {"batch_sizes": 8} | changes)])


def test_workers_do_what_one_process_does_and_a_dead_one_takes_one_run_with_it(tmp_path: Path) -> None:
    """The first worker to report is killed; its run fails, and another worker does the rest."""
    several = [["a photo of a {}.", "a picture of a {}."]]
    tasks = make_tasks() + make_tasks(methods="batclip", prompts=several, corruptions="fog")
    victim = ""
    rows: dict[str, Row] = {}
    failed: dict[str, Event] = {}
    with WorkerPool(1, 1, tmp_path, 0.0) as crew:
        for event in crew.run(tasks):
            if event.kind == "progress" and not victim:
                victim = event.task.run
                os.kill(crew.workers[event.worker].process.pid or 0, signal.SIGKILL)
            elif event.row is not None:
                rows[event.task.run] = event.row
            elif event.kind == "failed":
                failed[event.task.run] = event
        assert len(crew.workers) == 1
    assert crew.workers == {}
    batclip = next(task.run for task in tasks if task.method == "batclip")
    assert set(failed) == {victim, batclip}
    assert "SIGKILL" in failed[victim].message
    assert "encodes one prompt per class" in failed[batclip].message
    assert "Traceback" in failed[batclip].details
    assert set(rows) == {task.run for task in tasks} - set(failed)
    for task in tasks:
        if task.run in rows:
            assert rows[task.run].compare() == run_task(task, tmp_path / "alone").compare()


def test_next_task_is_of_the_pictures_at_hand() -> None:
    fog, snow = make_tasks()
    more_fog = dataclasses.replace(fog, run="more")
    assert choose_task([snow, more_fog], fog.group, []) is more_fog
    assert choose_task([fog, snow], (), [fog.group]) is snow
    assert choose_task([fog, more_fog], (), [fog.group]) is fog
