"""The proofs of docs/scale.md on two local nodes, short: the same rows as one machine, whatever dies."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmr.bench.plans.plan import Plan, parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.bench import run_bench
from lmr.bench.running.row import read_rows, read_samples
from lmr.bench.running.workers import Event
from lmr.cluster import ray_bench
from lmr.cluster.ray_bench import RayWorkers, run_on_node, run_ray_bench
from lmr.core.errors import LmrError
from predict_runs import posix
from ray_maker import expect_free, make_cluster, taking_interrupts, wait_for_nodes

TABLE: dict[str, Any] = {
    "methods": ["zeroshot", "lmr"],
    "datasets": "photo-c",
    "backbones": "photo",
    "corruptions": ["fog", "snow"],
    "images": 96,
    "batch_sizes": 8,
}


def make_plan(**changes: Any) -> Plan:
    return parse_plan("test", "", Path(), TABLE | changes)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, Any]]:
    with make_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same plan on one machine, with as many threads."""
    folder = tmp_path_factory.mktemp("here")
    run_bench(make_plan(), folder, workers=2, screen=io.StringIO())
    return folder


@pytest.fixture
def task() -> Task:
    return list_tasks([make_plan(methods="zeroshot", corruptions="fog", images=16)])[0]


def expect_same(folder: Path, other: Path) -> None:
    found, expected = ({row.run: row for row in read_rows(place)[0]} for place in (folder, other))
    assert {run: row.compare() for run, row in found.items()} == {run: row.compare() for run, row in expected.items()}
    for run in expected:
        theirs = read_samples(other, run)
        for name, values in read_samples(folder, run).items():
            assert values.tobytes() == theirs[name].tobytes(), name


def test_failed_run_says_why_and_a_node_with_other_files_is_refused(task: Task, tmp_path: Path) -> None:
    """What is wrong with the run is a value; what is wrong with the node is an error."""
    failed = run_on_node(dataclasses.replace(task, entry=dataclasses.replace(task.entry, watch="nonsense")))
    assert failed.row is None
    assert failed.message
    assert "Traceback" in failed.details
    for name in ("data_digest", "weights"):
        with pytest.raises(LmrError, match=r"its (dataset|model) '\S+' is not that of the driver's machine"):
            run_on_node(dataclasses.replace(task, **{name: "another"}))
    file = tmp_path / "own.py"
    own = dataclasses.replace(task, entry=dataclasses.replace(task.entry, file=str(file), file_digest="another"))
    with pytest.raises(LmrError, match="Cannot read the method file"):
        run_on_node(own)
    file.touch()
    with pytest.raises(LmrError, match="machine"):
        run_on_node(own)


@pytest.mark.ray
def test_two_nodes_give_the_rows_and_samples_of_one_machine(cluster: Any, here: Path, tmp_path: Path) -> None:
    screen = io.StringIO()
    result = run_ray_bench(cluster[0], [make_plan()], tmp_path, screen=screen)
    assert result.failures == []
    expect_same(tmp_path, here)
    assert screen.getvalue().count("lmr: node ") == 2


@posix
@pytest.mark.ray
def test_interrupt_leaves_the_cluster_clean_and_the_bench_resumes(
    cluster: Any, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RayWorkers.run

    def interrupt(self: RayWorkers, tasks: list[Task]) -> Iterator[Event]:
        for event in real(self, tasks):
            yield event
            if event.kind == "done":
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RayWorkers, "run", interrupt)
    with taking_interrupts(), pytest.raises(KeyboardInterrupt, match="finished"):
        run_ray_bench(cluster[0], [make_plan()], tmp_path, screen=io.StringIO())
    monkeypatch.undo()
    expect_free(cluster[0], 2)
    assert run_ray_bench(cluster[0], [make_plan()], tmp_path, screen=io.StringIO()).skipped == 1
    expect_same(tmp_path, here)


@pytest.mark.ray
@pytest.mark.flaky(reruns=1)  # Ray has time limits of its own
def test_killed_processes_and_a_dead_node_cost_time_only(
    cluster: Any, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_once(task: Task, run: Any = run_on_node) -> Any:
        mark = tmp_path / f"killed-{task.run}"
        if task.entry.label == "LMR" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return run(task)

    ray, nodes = cluster
    with monkeypatch.context() as patch:
        patch.setattr(ray_bench, "run_on_node", die_once)
        assert run_ray_bench(ray, [make_plan()], tmp_path / "a", screen=io.StringIO()).failures == []
    expect_same(tmp_path / "a", here)
    assert len(list(tmp_path.glob("killed-*"))) == 2
    wanted = list_tasks([make_plan()])
    second, rows = nodes.list_all_nodes()[-1], {}
    with RayWorkers(ray, tmp_path / "b", 1, None) as workers:
        for event in workers.run(wanted):
            if second is not None and event.worker == 1:  # both nodes have a run
                nodes.remove_node(second, allow_graceful=False)
                second = None
            if event.row is not None:
                rows[event.task.run] = event.row.compare()
    nodes.add_node(num_cpus=1)
    wait_for_nodes(ray, 2)
    assert rows == {row.run: row.compare() for row in read_rows(here)[0]}
