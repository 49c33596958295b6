"""Four shards on two local nodes give the bytes of one machine, whatever dies on the way."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.streams import StreamPlan, plan_streams, predict_streams
from lmr.cluster import actor_pool
from lmr.cluster import nodes as nodes_file
from lmr.cluster.predicting import ray_predict
from lmr.cluster.predicting.ray_predict import describe_shards, run_ray_predict
from lmr.cluster.predicting.shard_pool import ShardEvent, ShardJob, ShardPool
from lmr.core.errors import LmrError
from predict_runs import DRAWINGS, LABELS, TEXT, draw_pictures, photograph, posix, start
from ray_maker import expect_free, make_cluster, start_together, taking_interrupts, wait_for_nodes

pytestmark = pytest.mark.ray
Act = Callable[[ShardPool, ShardEvent], None]


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
        predict_streams(plan(folder / "straight.jsonl", folder))
    return folder


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """As many as a worker has: the last digits of a sum depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plan(out: Path, cams: Path, **options: Any) -> StreamPlan:
    given = {
        "model": "pocket",
        "method": "lmr",
        "batch_size": 2,
        "stream_by": "folder",
        "shards": 4,
        "out": out,
    } | options
    return plan_streams(given.pop("sources", cams / "cams"), PredictOptions(labels=LABELS, **given))


def expect_same(out: Path, cams: Path) -> None:
    assert out.read_bytes() == (cams / "straight.jsonl").read_bytes()
    assert not out.with_name(f"{out.name}.parts").exists()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Do something at every event of the pool."""
    real = ShardPool.run

    def begin(act: Act) -> None:
        def run(self: ShardPool, jobs: Any) -> Iterator[ShardEvent]:
            for event in real(self, jobs):
                act(self, event)
                yield event

        monkeypatch.setattr(ShardPool, "run", run)

    return begin


def test_two_nodes_give_the_bytes_of_one_machine(
    cluster: Any, cams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_free(cluster[0], 2)
    start_together(monkeypatch)
    screen = io.StringIO()
    summary = run_ray_predict(cluster[0], plan(tmp_path / "o.jsonl", cams, state=tmp_path / "states"), screen=screen)
    expect_same(tmp_path / "o.jsonl", cams)
    assert (summary.images, summary.errors, summary.earlier, sum(summary.tally.causes.values())) == (88, 1, 0, 1)
    assert len(list((tmp_path / "states").glob("*.state"))) == 5
    lines = screen.getvalue().splitlines()
    assert sum(line.startswith("lmr: node ") for line in lines) == 2
    finished = [line for line in lines if line.startswith("[")]
    assert len({line.split()[1] for line in finished}) == 2  # both nodes
    assert "(0 streams with 0 images left)" in finished[-1]
    expect_free(cluster[0], 2)


def test_placement_names_nodes_workers_and_streams(cluster: Any, cams: Path, tmp_path: Path) -> None:
    text = describe_shards(cluster[0], plan(tmp_path / "o.jsonl", cams))
    assert text.count("Node ") == text.count(" GB free, 1 worker\n") == 2
    assert "Workers: 2, with 1 thread each." in text
    assert "Shard 1 of 4: 30 images" in text
    assert "Streams: 5, images: 88." in text
    assert text.endswith("The first 2 shards start at once, each of the others when a worker is free.")
    assert list(tmp_path.iterdir()) == []


@posix
def test_interrupt_leaves_the_cluster_clean_and_what_is_finished(
    cluster: Any, cams: Path, tmp_path: Path, watch: Callable[[Act], None]
) -> None:
    def interrupt(pool: ShardPool, event: ShardEvent) -> None:
        if event.images >= 4:
            signal.raise_signal(signal.SIGINT)

    watch(interrupt)
    message = "of 5 streams are finished; to continue, give the same command"
    with taking_interrupts(), pytest.raises(KeyboardInterrupt, match=message):
        run_ray_predict(cluster[0], plan(tmp_path / "o.jsonl", cams), screen=io.StringIO())
    expect_free(cluster[0], 2)
    with one_thread():
        summary = predict_streams(plan(tmp_path / "o.jsonl", cams))  # begun on a cluster, continued on one machine
    assert summary.earlier >= 4
    expect_same(tmp_path / "o.jsonl", cams)


@posix
def test_killed_driver_is_continued_by_the_same_command(cluster: Any, cams: Path, tmp_path: Path) -> None:
    ray, nodes = cluster
    out = tmp_path / "o.jsonl"
    arguments = [str(cams / "cams"), "--labels", TEXT, "--batch-size", "2", "--stream-by", "folder", "--shards", "4"]
    process = start("predict", *DRAWINGS, *arguments, "--out", str(out), "--ray", nodes.address)
    end, parts = time.monotonic() + 120, tmp_path / "o.jsonl.parts"
    while not list(parts.glob("00000[0-9].jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not out.exists()
    expect_free(ray, 2)  # Ray ends the actors of a driver that has gone
    summary = run_ray_predict(ray, plan(out, cams), screen=io.StringIO())
    assert 0 < summary.earlier < summary.images
    expect_same(out, cams)


def test_node_without_the_files_is_named_and_nothing_is_written(
    cluster: Any, cams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver believes that a file is larger than the nodes find it."""
    from lmr.cluster.predicting import shard_pool

    real = shard_pool.measure_files
    monkeypatch.setattr(shard_pool, "measure_files", lambda images: [size and size + 1 for size in real(images)])
    screen = io.StringIO()
    wanted = plan(tmp_path / "o.jsonl", cams, sources=cams / "cams/cam3", shards=1)
    with pytest.raises(LmrError, match=r"1 of 1 shards failed, shard 1: No node can run it\. Its '.*img120\.png' has"):
        run_ray_predict(cluster[0], wanted, screen=screen)
    assert screen.getvalue().count("is not used for shard 1: Its ") == 2
    assert not (tmp_path / "o.jsonl").exists()


def test_other_versions_are_refused_before_work_starts(
    cluster: Any, cams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_predict, "list_versions", lambda: nodes_file.list_versions() | {"torch": "0"})
    with pytest.raises(LmrError, match=r"The node .* has torch .* \(here 0\); .*0 of 5 streams are finished"):
        run_ray_predict(cluster[0], plan(tmp_path / "o.jsonl", cams), screen=io.StringIO())
    assert [os.path.basename(name) for name in photograph(tmp_path)] == ["run.json"]


def test_dead_actor_and_dead_node_change_nothing(
    cluster: Any, cams: Path, tmp_path: Path, watch: Callable[[Act], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor on the first node is killed, and then the second node, which its shard went to."""
    ray, nodes = cluster
    expect_free(ray, 2)
    start_together(monkeypatch)
    monkeypatch.setattr(actor_pool, "POLL_SECONDS", 0.05)  # to see workers in the middle of short streams
    victims, second, start_job = ["actor", "node"], nodes.list_all_nodes()[-1], ShardPool.start_job
    messages, killed, resumed = [], set[str](), []

    def note_start(self: ShardPool, actor: Any, job: ShardJob) -> Any:
        if job.run in killed:
            numbers = [stream.number for stream in job.shard.streams]
            kept = [self.parts.read(number) for number in numbers]
            finished = sum(self.parts.is_finished(number) for number in numbers)
            resumed.append(finished + sum(len(one[0]) for one in kept if one is not None))
        return start_job(self, actor, job)

    def kill(pool: ShardPool, event: ShardEvent) -> None:
        worker = pool.workers.get(event.worker)
        if event.kind == "message":
            messages.append(event.message)
        if event.kind != "progress" or event.images < 4 or not victims or worker is None or worker.job is None:
            return
        if ray.wait([worker.result], timeout=0)[0]:  # it has finished: not in the middle
            return
        if (worker.node == second.node_id) != (victims[0] == "node"):
            return
        killed.add(event.job.run)
        if victims.pop(0) == "actor":
            ray.kill(worker.actor)
        else:
            nodes.remove_node(second, allow_graceful=False)

    watch(kill)
    monkeypatch.setattr(ShardPool, "start_job", note_start)
    run_ray_predict(ray, plan(tmp_path / "o.jsonl", cams), screen=io.StringIO(), save_seconds=0.0)
    nodes.add_node(num_cpus=1)
    wait_for_nodes(ray, 2)
    assert victims == []
    # Twice, unless the node's last shard was finished between the death of the node and that of its actor.
    assert any("starts again from its checkpoint" in text for text in messages)
    assert resumed
    assert min(resumed) > 0  # answers that are not computed again
    expect_same(tmp_path / "o.jsonl", cams)
