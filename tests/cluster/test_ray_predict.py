"""Streams on two local nodes have the files of one machine, whatever dies on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.run import Labeller
from lmr.apps.predict.streams import StreamPlan, plan_streams, predict_streams
from lmr.cluster import ray_predict
from lmr.cluster.ray_predict import LabelSetup, StreamJob, label_job, make_setup, run_ray_predict
from lmr.core.errors import LmrError
from predict_runs import LABELS, draw_pictures
from ray_maker import make_cluster, wait_for_nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, Any]]:
    with make_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def cams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five cameras, one with a broken image, and what one machine says of them."""
    folder = tmp_path_factory.mktemp("cameras")
    (folder / "cams").mkdir()
    for number, size in enumerate((30, 12, 24, 8, 14)):
        draw_pictures(folder / "cams" / f"cam{number}", range(40 * number, 40 * number + size))
    (folder / "cams/cam1/img41.png").write_text("broken")
    with one_thread():
        predict_streams(plan(folder / "straight", folder))
    return folder


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """As many as a task has: the last digits of a sum depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plan(out: str | Path, cams: Path, **options: Any) -> StreamPlan:
    usual = {"model": "photo", "method": "lmr", "batch_size": 2, "passes": 1, "stream_by": r"(cam\d)/"}
    given = usual | {"out": out} | options
    return plan_streams(given.pop("sources", cams / "cams"), PredictOptions(labels=LABELS, **given))


def read_answers(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def expect_same(out: Path, cams: Path) -> None:
    assert read_answers(out) == read_answers(cams / "straight")


def test_node_without_the_same_files_or_the_folder_is_refused(cams: Path, tmp_path: Path) -> None:
    wanted = plan(tmp_path / "o", cams, sources=cams / "cams/cam3")
    setup = make_setup(wanted, Labeller(wanted.options))
    job = StreamJob(wanted.streams[0], 8)
    with pytest.raises(LmrError, match="give an --out that all nodes share"):
        label_job(setup, job)
    (tmp_path / "o").mkdir()
    with pytest.raises(LmrError, match="machine"):
        label_job(setup, StreamJob(job.stream, 9))
    for change, message in (
        ({"fingerprint": {}}, "its weights or texts"),
        ({"method": {"x": "y"}}, "it has another x"),
    ):
        with pytest.raises(LmrError, match=message):
            label_job(dataclasses.replace(setup, key="other", **change), job)
    with one_thread():
        assert label_job(setup, job).images == 8
        assert label_job(setup, job).images == 0  # all is finished


# On two local nodes.


@pytest.mark.ray
def test_two_nodes_give_the_bytes_of_one_machine(cluster: Any, cams: Path, tmp_path: Path) -> None:
    """Also in a second run, which starts from the states of the first."""
    screen, states, out = io.StringIO(), tmp_path / "states", tmp_path / "o"
    summary = run_ray_predict(cluster[0], plan(out, cams, state=states), screen=screen)
    expect_same(out, cams)
    assert (summary.images, summary.errors, summary.earlier, summary.tally.failed) == (88, 1, 0, 1)
    assert len(list(states.glob("*.state"))) == 5
    lines = screen.getvalue().splitlines()
    assert sum(line.startswith("lmr: node ") for line in lines) == 2
    assert "lmr: [5/5]" in lines[-1]
    run_ray_predict(cluster[0], plan(out, cams, state=states, overwrite=True), screen=screen)
    with one_thread():
        for number in range(2):
            given: Any = {"state": tmp_path / "own", "overwrite": bool(number)}
            predict_streams(plan(tmp_path / "here", cams, **given))
    assert read_answers(out) == read_answers(tmp_path / "here")


@pytest.mark.ray
@pytest.mark.flaky(reruns=1)  # Ray has time limits of its own
def test_killed_processes_and_a_dead_node_cost_time_only(
    cluster: Any, cams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task is killed in its middle once; then a node dies with the task it has."""

    def die_once(setup: LabelSetup, job: StreamJob, label: Any = label_job) -> Any:
        from lmr.apps.predict.run import PredictRun

        mark, real, saves = tmp_path / f"killed-{job.stream.name}", PredictRun.save, []

        def save(self: Any) -> None:
            real(self)
            saves.append(1)
            if len(saves) == 3 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        PredictRun.save = save  # type: ignore[method-assign]
        try:
            return label(setup, job)
        finally:
            PredictRun.save = real  # type: ignore[method-assign]

    ray, nodes = cluster
    monkeypatch.setattr(ray_predict, "label_job", die_once)
    summary = run_ray_predict(ray, plan(tmp_path / "o", cams), screen=io.StringIO())
    expect_same(tmp_path / "o", cams)
    assert len(list(tmp_path.glob("killed-*"))) == 5
    assert summary.earlier > 0  # answers that were not computed again
    monkeypatch.undo()

    real, second = ray_predict.TaskPool.run, nodes.list_all_nodes()[-1]

    def run(self: Any, jobs: Any) -> Iterator[Any]:
        for report in real(self, jobs):
            yield report
            if report.slot == 1 and report.value is None:  # both nodes have a task
                with contextlib.suppress(Exception):
                    nodes.remove_node(second, allow_graceful=False)

    monkeypatch.setattr(ray_predict.TaskPool, "run", run)
    run_ray_predict(ray, plan(tmp_path / "b", cams), screen=io.StringIO())
    nodes.add_node(num_cpus=1)
    wait_for_nodes(ray, 2)
    expect_same(tmp_path / "b", cams)
