"""The proofs of docs/scale.md on two local nodes, short: the same rows as one machine, whatever dies."""

from __future__ import annotations

import dataclasses
import io
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmr.bench.plans.plan import Plan, parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.bench import run_bench
from lmr.bench.running.checkpoint import Checkpoint
from lmr.bench.running.row import read_rows, read_samples
from lmr.bench.running.workers import Event
from lmr.cluster import actor_pool
from lmr.cluster.nodes import Node, list_versions
from lmr.cluster.ray_bench import describe_placement, plan_workers, run_ray_bench
from lmr.cluster.ray_pool import RayPool
from lmr.core.state import read_state
from predict_runs import posix, start, wait_for_growth
from ray_maker import expect_free, make_cluster, start_together, taking_interrupts, wait_for_nodes

pytestmark = pytest.mark.ray
TABLE: dict[str, Any] = {
    "methods": ["zeroshot", "lmr"],
    "datasets": "pocket-c",
    "backbones": "pocket",
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


@pytest.fixture(scope="module")
def long_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of runs that are long enough to be met in the middle, on one machine."""
    folder = tmp_path_factory.mktemp("long")
    run_bench(make_long_plan(), folder, workers=2, screen=io.StringIO())
    return folder


def make_long_plan() -> Plan:
    return make_plan(methods="lmr", images=800)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The runs that are started, each with the images that its checkpoint has."""
    real, noted = RayPool.start_job, list[tuple[str, int]]()

    def start_job(self: RayPool, actor: Any, job: Task) -> Any:
        state = Checkpoint(self.folder, job.run).state
        noted.append((job.run, int(read_state(state)[1]["note.images"]) if state.exists() else 0))
        return real(self, actor, job)

    monkeypatch.setattr(RayPool, "start_job", start_job)
    return noted


def is_in_the_middle(pool: RayPool, event: Event) -> bool:
    """Whether a worker has finished two batches, so that there is a checkpoint, and has many to go."""
    worker = pool.workers.get(event.worker)
    if worker is None or worker.job is None or pool.ray.wait([worker.result], timeout=0)[0]:
        return False
    return event.kind == "progress" and 2 * 8 <= event.images <= event.task.images // 2


def expect_same(folder: Path, other: Path) -> None:
    found, expected = ({row.run: row for row in read_rows(place)[0]} for place in (folder, other))
    assert {run: row.compare() for run, row in found.items()} == {run: row.compare() for run, row in expected.items()}
    for run in expected:
        theirs = read_samples(other, run)
        for name, values in read_samples(folder, run).items():
            assert values.tobytes() == theirs[name].tobytes(), name


def test_two_nodes_give_the_rows_and_samples_of_one_machine(
    cluster: Any, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_free(cluster[0], 2)
    start_together(monkeypatch)
    screen = io.StringIO()
    outcome = run_ray_bench(cluster[0], [make_plan()], tmp_path, screen=screen)
    assert outcome.failures == []
    expect_same(tmp_path, here)
    shown = screen.getvalue()
    assert shown.count("lmr: node ") == 2
    assert len({line.split("  ")[0].split("] ")[1] for line in shown.splitlines() if line.startswith("[")}) == 2  # both
    assert list(tmp_path.glob("checkpoints/*")) == []


def test_placement_names_nodes_workers_and_groups(cluster: Any) -> None:
    text = describe_placement(cluster[0], [make_plan()], None, None)
    assert text.count("Node ") == text.count(" GB free, 1 worker\n") == 2
    assert "Workers: 2, with 1 thread each." in text
    assert "   2 runs on one worker: pocket, pocket-c fog 5" in text
    assert "Runs: 4, images: 384." in text


def test_large_models_get_the_threads_of_the_smallest_node(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = list_tasks([make_plan()])
    nodes = [Node(name, name, cores, 0, {}, 0.0) for name, cores in (("a", 8), ("b", 4))]
    assert plan_workers(tasks, nodes, None) == (12, 1)
    assert plan_workers(tasks, nodes, 3) == (3, 1)
    monkeypatch.setattr("lmr.bench.running.bench.is_small_model", lambda *model: False)
    assert plan_workers(tasks, nodes, None) == (3, 4)


@posix
def test_interrupt_leaves_the_cluster_clean_and_the_bench_resumes(
    cluster: Any, long_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[tuple[str, int]]
) -> None:
    real, screen = RayPool.run, io.StringIO()

    def interrupt(self: RayPool, tasks: Sequence[Task]) -> Iterator[Event]:
        for event in real(self, tasks):
            if is_in_the_middle(self, event):
                signal.raise_signal(signal.SIGINT)
            yield event

    message = r"[01] of 2 runs are finished and kept .* the same command again"
    monkeypatch.setattr(actor_pool, "POLL_SECONDS", 0.05)  # to see workers in the middle of short runs
    monkeypatch.setattr(RayPool, "run", interrupt)
    with taking_interrupts(), pytest.raises(KeyboardInterrupt, match=message):
        run_ray_bench(cluster[0], [make_long_plan()], tmp_path, screen=io.StringIO())
    monkeypatch.setattr(RayPool, "run", real)
    assert list((tmp_path / "checkpoints").glob("*.state"))
    expect_free(cluster[0], 2)
    starts.clear()
    assert run_ray_bench(cluster[0], [make_long_plan()], tmp_path, screen=screen).failures == []
    assert max(images for _, images in starts) >= 2 * 8
    assert "cannot be used" not in screen.getvalue()
    expect_same(tmp_path, long_here)


@posix
def test_killed_driver_is_continued_by_the_same_command(cluster: Any, here: Path, tmp_path: Path) -> None:
    arguments = [word for key in ("methods", "datasets", "backbones", "corruptions", "images", "batch_sizes")
             for word in (f"--{key.replace('_', '-')}", *np.atleast_1d(TABLE[key]).astype(str))]  # fmt: skip
    process = start("bench", *arguments, "--out", str(tmp_path), "--ray", cluster[1].address)
    wait_for_growth(process, tmp_path / "rows.jsonl", 0)
    process.kill()
    process.communicate()
    expect_free(cluster[0], 2)  # Ray ends the actors of a driver that has gone
    outcome = run_ray_bench(cluster[0], [make_plan()], tmp_path, screen=io.StringIO())
    assert outcome.failures == []
    assert outcome.skipped > 0
    expect_same(tmp_path, here)


def test_task_that_no_node_can_do_fails_with_the_reason(cluster: Any, tmp_path: Path) -> None:
    task = list_tasks([make_plan(methods="zeroshot", corruptions="fog")])[0]
    foreign = dataclasses.replace(task, data_digest="another")
    with RayPool(cluster[0], 2, 1, tmp_path, 15.0, list_versions()) as pool:
        events = list(pool.run([foreign]))
    assert "The node" in events[0].message
    assert "is not used for pocket-c" in events[0].message
    assert events[-1].kind == "failed"
    assert events[-1].message == (
        "No node can run it. Its files of the dataset 'pocket-c' are not those of the driver's machine."
    )


def test_node_with_other_versions_runs_nothing(cluster: Any, tmp_path: Path) -> None:
    task = list_tasks([make_plan(methods="zeroshot", corruptions="fog")])[0]
    with RayPool(cluster[0], 1, 1, tmp_path, 15.0, list_versions() | {"torch": "0"}) as pool:
        kinds = {event.kind for event in pool.run([task])}
    assert kinds == {"message", "failed"}


def test_dead_node_costs_time_only(
    cluster: Any, long_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[tuple[str, int]]
) -> None:
    """The second node is killed while its worker is at work; the run continues elsewhere from its checkpoint."""
    ray, nodes = cluster
    expect_free(ray, 2)
    start_together(monkeypatch)
    monkeypatch.setattr(actor_pool, "POLL_SECONDS", 0.05)
    rows, messages, killed = {}, [], ""
    victim = nodes.list_all_nodes()[-1]
    with RayPool(ray, 2, 1, tmp_path, 0.0, list_versions()) as pool:
        for event in pool.run(list_tasks([make_long_plan()])):
            if not killed and is_in_the_middle(pool, event) and pool.workers[event.worker].node == victim.node_id:
                nodes.remove_node(victim, allow_graceful=False)
                killed = event.task.run
            if event.kind == "message":
                messages.append(event.message)
            if event.row is not None:
                rows[event.task.run] = event.row
    nodes.add_node(num_cpus=1)
    wait_for_nodes(ray, 2)
    assert any("starts again from its checkpoint" in text for text in messages)
    assert not any("cannot be used" in text for text in messages)
    assert [images >= 8 for run, images in starts if run == killed] == [False, True]
    expected = {row.run: row.compare() for row in read_rows(long_here)[0]}
    assert {run: row.compare() for run, row in rows.items()} == expected
