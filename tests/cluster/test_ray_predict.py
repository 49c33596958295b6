"""Four shards on two local nodes give the bytes of one machine, whatever dies on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmr.apps.predict.options import PredictOptions
from lmr.apps.predict.parts import StreamParts
from lmr.apps.predict.run import Labeller
from lmr.apps.predict.streams import ImageStream, StreamPlan, plan_streams, predict_streams
from lmr.cluster import nodes as nodes_file
from lmr.cluster import ray_predict
from lmr.cluster.ray_predict import (
    LabelSetup,
    Shard,
    describe_shards,
    label_shard,
    make_shards,
    measure_files,
    run_ray_predict,
)
from lmr.core.errors import LmrError
from lmr.images.remote import RemoteImage
from predict_runs import DRAWINGS, LABELS, TEXT, draw_pictures, photograph, posix, start
from ray_maker import expect_free, make_cluster, wait_for_nodes


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
    """As many as a task has: the last digits of a sum depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plan(out: str | Path, cams: Path, **options: Any) -> StreamPlan:
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


# Without Ray.


def test_shards_have_about_as_many_images_and_every_stream_once() -> None:
    sizes = [5, 1, 1, 9, 3, 3]
    streams = [ImageStream(number, str(number), (Path("x"),) * size) for number, size in enumerate(sizes)]
    shards = make_shards(streams, 3)
    assert [shard.images for shard in shards] == [9, 7, 6]
    assert sorted(stream.number for shard in shards for stream in shard.streams) == list(range(6))
    assert make_shards(reversed(streams), 3) == shards
    assert len(make_shards(streams, 100)) == 6


def make_setup(plan: StreamPlan) -> LabelSetup:
    labeller = Labeller(plan.options)
    return LabelSetup(str(plan.out), plan, labeller.classifier.fingerprint, {}, 0.0)


def test_killed_task_goes_on_from_its_last_state(cams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that fails stands for the kill; the next try labels only what was not saved."""
    wanted = plan(tmp_path / "o.jsonl", cams, sources=cams / "cams/cam0")
    parts, (shard,) = StreamParts(wanted.out), make_shards(wanted.streams, 1)
    parts.begin(wanted.note())
    real, writes = StreamParts.write, []

    def write(self: StreamParts, name: str, content: bytes) -> None:
        writes.append(name)
        if len(writes) == 8:
            raise LmrError("killed")
        real(self, name, content)

    with one_thread():
        monkeypatch.setattr(StreamParts, "write", write)
        with pytest.raises(LmrError, match="killed"):
            label_shard(make_setup(wanted), shard)
        monkeypatch.undo()
        first = label_shard(make_setup(wanted), shard)
        assert label_shard(make_setup(wanted), shard).images == 0  # all is finished
    assert 0 < first.images < 30
    assert parts.list_finished() == {0}
    parts.merge([0])
    assert (cams / "straight.jsonl").read_bytes().startswith((tmp_path / "o.jsonl").read_bytes())


def test_state_without_its_answers_starts_the_stream_again(cams: Path, tmp_path: Path) -> None:
    wanted = plan(tmp_path / "o.jsonl", cams, sources=cams / "cams/cam3", state=tmp_path / "states")
    parts, (shard,) = StreamParts(wanted.out), make_shards(wanted.streams, 1)
    parts.begin(wanted.note())
    with one_thread():
        label_shard(make_setup(wanted), shard)
        answers = parts.read(parts.answers(0))
        parts.write(parts.part(0), b"torn")
        (tmp_path / "o.jsonl.parts" / parts.answers(0)).unlink()
        assert label_shard(make_setup(wanted), shard).images == 8
    assert parts.read(parts.answers(0)) == answers


def test_node_without_the_same_files_or_the_folder_is_refused(cams: Path, tmp_path: Path) -> None:
    wanted = plan(tmp_path / "o.jsonl", cams, sources=cams / "cams/cam3")
    (shard,) = make_shards(wanted.streams, 1)
    setup, sizes = make_setup(wanted), measure_files(wanted.streams)
    with pytest.raises(LmrError, match=r"it has no '.*o\.jsonl\.parts', where the answers go; give an --out"):
        label_shard(setup, shard)
    StreamParts(wanted.out).begin(wanted.note())
    name = next(iter(sizes))
    for other, message in (({name: 1}, "bytes, that of the driver's machine 1"), ({"none.png": 1}, "it cannot read")):
        with pytest.raises(LmrError, match=message):
            label_shard(setup, dataclasses.replace(shard, sizes=sizes | other))
    for change, message in (
        ({"fingerprint": {}}, "its weights or texts"),
        ({"method": {"x": "y"}}, "it has another x"),
    ):
        with pytest.raises(LmrError, match=message):
            label_shard(dataclasses.replace(setup, key="other", **change), shard)
    assert [path.name for path in (tmp_path / "o.jsonl.parts").iterdir()] == ["run.json"]


def test_first_image_at_an_address_is_tried(tmp_path: Path) -> None:
    there = draw_pictures(tmp_path / "cam", range(2))
    images = [RemoteImage(f"file://{path}") for path in sorted(there.iterdir())]
    missing = RemoteImage(f"file://{tmp_path}/none.png")
    assert measure_files([ImageStream(0, "a", tuple(images)), ImageStream(1, "b", (missing,))]) == {images[0].url: 0}


def test_address_without_a_cluster_is_refused(cams: Path, tmp_path: Path) -> None:
    with pytest.raises(LmrError, match=r"o\.jsonl is an address, which .*; give --ray with it"):
        predict_streams(plan(f"file://{tmp_path}/o.jsonl", cams))
    assert list(tmp_path.iterdir()) == []


# On two local nodes.


@pytest.mark.ray
def test_two_nodes_give_the_bytes_of_one_machine(cluster: Any, cams: Path, tmp_path: Path) -> None:
    """The output is at an address; states of an earlier run are on the driver's machine alone."""
    screen, states = io.StringIO(), tmp_path / "states"
    out = f"file://{tmp_path}/o.jsonl"
    summary = run_ray_predict(cluster[0], plan(out, cams, state=states), screen=screen)
    expect_same(tmp_path / "o.jsonl", cams)
    assert (summary.images, summary.errors, summary.earlier, sum(summary.tally.causes.values())) == (88, 1, 0, 1)
    assert len(list(states.glob("*.state"))) == 5
    lines = screen.getvalue().splitlines()
    assert sum(line.startswith("lmr: node ") for line in lines) == 2
    assert "lmr: [4/4]" in lines[-1]
    text = describe_shards(cluster[0], plan(out, cams, overwrite=True))
    assert "Shard 1 of 4: 30 images" in text
    assert text.endswith("Streams: 5, images: 88.")
    run_ray_predict(cluster[0], plan(out, cams, state=states, overwrite=True), screen=screen)
    with one_thread():
        for number in range(2):
            given: Any = {"state": tmp_path / "own", "overwrite": bool(number)}
            predict_streams(plan(tmp_path / "here.jsonl", cams, **given))
    assert (tmp_path / "o.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()


@posix
@pytest.mark.ray
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
    expect_free(ray, 2)  # Ray ends the tasks of a driver that has gone
    summary = run_ray_predict(ray, plan(out, cams), screen=io.StringIO())
    assert 0 < summary.earlier <= summary.images
    expect_same(out, cams)


@pytest.mark.ray
def test_other_versions_are_refused_before_work_starts(
    cluster: Any, cams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_predict, "list_versions", lambda: nodes_file.list_versions() | {"torch": "0"})
    with pytest.raises(LmrError, match=r"The node .* has torch .* \(here 0\); .*0 of 5 streams are finished"):
        run_ray_predict(cluster[0], plan(tmp_path / "o.jsonl", cams), screen=io.StringIO())
    assert [os.path.basename(name) for name in photograph(tmp_path)] == ["run.json"]


@pytest.mark.ray
@pytest.mark.flaky(reruns=1)  # Ray has time limits of its own
def test_killed_processes_and_a_dead_node_cost_time_only(
    cluster: Any, cams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task is killed in its middle once; then a node dies with the task it has."""

    def die_once(setup: LabelSetup, shard: Shard, label: Any = label_shard) -> Any:
        import lmr.apps.predict.parts as parts

        mark, real, saves = tmp_path / f"killed-{shard.number}", parts.StreamParts.write, []

        def write(self: Any, name: str, content: bytes) -> None:
            real(self, name, content)
            saves.append(name)
            if len(saves) == 6 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        parts.StreamParts.write = write  # type: ignore[method-assign]
        try:
            return label(setup, shard)
        finally:
            parts.StreamParts.write = real  # type: ignore[method-assign]

    ray, nodes = cluster
    monkeypatch.setattr(ray_predict, "label_shard", die_once)
    summary = run_ray_predict(ray, plan(tmp_path / "o.jsonl", cams), screen=io.StringIO(), save_seconds=0.0)
    expect_same(tmp_path / "o.jsonl", cams)
    assert len(list(tmp_path.glob("killed-*"))) == 4
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
    run_ray_predict(ray, plan(tmp_path / "b.jsonl", cams), screen=io.StringIO())
    nodes.add_node(num_cpus=1)
    wait_for_nodes(ray, 2)
    expect_same(tmp_path / "b.jsonl", cams)
