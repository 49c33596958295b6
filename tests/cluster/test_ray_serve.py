"""``lmr serve --ray``: what it refuses before anything starts, and replicas on two local nodes that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

import lmr
from lab.load.cameras import SteadyCameras
from lab.load.child_service import ChildService
from lab.load.inputs import draw_image, find_pocket
from lab.load.postgres_server import PostgresServer
from lab.load.replicas import REPLICA, find_processes, kill_replica
from lmr import LmrError
from lmr.apps.model_options import choose_prompts
from lmr.apps.options import ServerOptions
from lmr.apps.serve import ServingPlan
from lmr.cluster import ray_serve as module
from lmr.cluster.nodes import Node, list_versions
from lmr.cluster.ray_serve import VARIABLES, ReplicaCount, ReplicaPlan, import_serve, run_replicas, serve_on_ray
from lmr.service.client.client import STREAM_HEADER
from lmr.service.settings import ServiceSettings
from predict_runs import posix
from ray_maker import make_cluster, taking_interrupts

NAMES = ["red ring", "blue star"]
STORE = "postgresql://lmr@127.0.0.1:1/lmr"
MODEL, CAMERAS = find_pocket(), 4
PAUSE = 0.1  # seconds between the requests of a camera: processes that start need the cores, too
TIMEOUT = 120.0  # seconds; against hanging alone
Start = Callable[[], AbstractContextManager[str]]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "got the store 'none'; give --store postgresql://USER@HOST/DATABASE"),
        (
            {"store": "sqlite:states/s.sqlite"},
            "in PostgreSQL, got the store 'states/s.sqlite'; give --store postgresql",
        ),
        ({"store": STORE, "host": "0.0.0.0"}, "needs a --token-file"),
        ({"store": STORE, "mqtt": "mqtt://localhost"}, "leave out --mqtt or --ray"),
    ],
)
def test_what_cannot_be_served_starts_no_cluster(
    given: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connect", None)
    with pytest.raises(LmrError, match=error):
        serve_on_ray("local", ServingPlan(NAMES), ServerOptions(**given), ReplicaCount(2), print)


@pytest.mark.parametrize(("bounds", "message"), [((0,), "got 0"), ((3, 2), "got 3:2"), ((1, None, 0.0), "cores")])
def test_wrong_numbers_of_replicas(bounds: tuple[int, ...], message: str) -> None:
    with pytest.raises(LmrError, match=message):
        ReplicaCount(*bounds)


def test_serve_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    monkeypatch.setitem(sys.modules, "ray.serve.experimental", None)
    with pytest.raises(LmrError, match=r"Ray Serve is not complete .* pip install 'lmr\[ray\]'"):
        import_serve()


def test_prompts_of_a_file_go_to_the_replicas(tmp_path: Path) -> None:
    content = {"red ring": ["a red ring."], "blue star": ["a blue star."]}
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(content))
    assert module._spread(ServingPlan(NAMES, prompts=choose_prompts(None, path))).prompts == content
    assert module._spread(ServingPlan(NAMES, prompts=["a {}."])).prompts == ["a {}."]


def test_paths_are_full_where_replicas_have_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("mine", "pocket"):
        (tmp_path / folder).mkdir()
    (tmp_path / "own.py").touch()
    spread = module._spread(ServingPlan(NAMES, model="mine", method="./own.py:own(lr=1)"))
    assert (spread.model, spread.method) == (str(tmp_path / "mine"), f"{tmp_path / 'own.py'}:own(lr=1)")
    assert module._spread(ServingPlan(NAMES, model="pocket")).model == "pocket"  # comes with lmr


def test_room_for_replicas_is_counted_by_node() -> None:
    """Serve would wait for ever for two cores of two nodes."""
    cores = {"a": 1, "b": 3}
    ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": {"CPU": count}} for count in cores.values()])
    module._check_room(ray, ReplicaCount(1, cpus=2.0))
    module._check_room(ray, ReplicaCount(16, cpus=0.25))
    with pytest.raises(LmrError, match="have room for 1 replicas with 2 cores each on one node, and 2 are to be"):
        module._check_room(ray, ReplicaCount(2, cpus=2.0))
    with pytest.raises(LmrError, match="room for 0 replicas with 1 cores and 1 GPUs each"):
        module._check_room(ray, ReplicaCount(1, gpus=1.0))


def test_port_that_is_taken_is_one_sentence() -> None:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")

    def fail(**given: object) -> None:
        cause = RuntimeError("Failed to bind to address '127.0.0.1:8080'.")
        message = f"Traceback\n  File proxy.py, in ready\nRuntimeError: {cause}\n"
        raise ray.exceptions.RayTaskError("ready", message, cause).as_instanceof_cause()

    message = r"^Ray Serve cannot be started: Failed to bind to address '127\.0\.0\.1:8080'; choose another --port"
    with pytest.raises(LmrError, match=message):
        module._start_serve(SimpleNamespace(start=fail), "127.0.0.1", 8080, (ray.exceptions.RayError,))


@contextlib.contextmanager
def connect(*given: object) -> Iterator[None]:
    """A connection to nothing."""
    yield


def test_nodes_with_other_versions_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node("old", 2, 0, list_versions() | {"torch": "0"}, 0.0)
    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "import_serve", lambda: None)
    monkeypatch.setattr(module, "find_nodes", lambda ray: [node])
    monkeypatch.setattr(module, "run_replicas", None)
    with pytest.raises(LmrError, match=r"The node old has torch 0 \(here .*Install the same versions on every node"):
        serve_on_ray("auto", ServingPlan(NAMES, model="pocket"), ServerOptions(store=STORE), ReplicaCount(), print)


def test_database_that_is_away_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "import_serve", lambda: None)
    monkeypatch.setattr(module, "run_replicas", None)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # for the tests after this one
    with pytest.raises(LmrError, match=r"Cannot reach the store 'lmr' at 127\.0\.0\.1:1: .*correct --store"):
        serve_on_ray("local", ServingPlan(NAMES, model="pocket"), ServerOptions(store=STORE), ReplicaCount(), print)


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_service_and_are_as_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with module._note_signals() as ended:
        assert not ended.is_set()
        signal.raise_signal(number)
        assert ended.is_set()
    assert signal.getsignal(number) is before


@posix
def test_interrupt_ends_a_start_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def wait(*given: object) -> Iterator[str]:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("It would wait for ever.")
        yield

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "import_serve", lambda: None)
    monkeypatch.setattr(module, "_describe", lambda plan, store: [])
    monkeypatch.setattr(module, "run_replicas", wait)
    with taking_interrupts(), pytest.raises(KeyboardInterrupt):
        serve_on_ray("local", ServingPlan(NAMES), ServerOptions(store=STORE), ReplicaCount(), print)


# On a cluster.


@pytest.fixture(scope="module")
def cluster(postgres: PostgresServer) -> Iterator[tuple[Any, Any]]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    import_serve()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)  # nodes of this cluster are started by the test
        with make_cluster() as made:
            yield made


@pytest.mark.ray
def test_command_that_was_killed_takes_its_place_again(
    cluster: tuple[Any, Any], postgres: PostgresServer, tmp_path: Path
) -> None:
    """The replicas that it leaves go on serving, and a new command replaces them."""
    words = ["--ray", cluster[1].address, "--replicas", "1", "--replica-cpus", "0.25", "--drain-s", "1"]
    service = ChildService([*MODEL.options, *words, "--store", postgres.make_database()], tmp_path)
    with service, lmr.Client(service.url) as client:
        service.wait_for_log("serving at")
        seqs = [client.step("left", draw_image(1, MODEL.side)).seq]
        service.kill()
        (left,) = find_processes(os.getpid(), REPLICA)
        seqs.append(client.step("left", draw_image(2, MODEL.side)).seq)
        service.start()
        service.wait_for_log("serving at", 2)  # the replica that was left answers meanwhile
        seqs.append(client.step("left", draw_image(3, MODEL.side)).seq)
        assert find_processes(os.getpid(), REPLICA) != [left]
        assert service.terminate()[0] == 0, service.read_log_end()
    assert seqs == [1, 2, 3]


@pytest.fixture(scope="module")
def start(cluster: tuple[Any, Any], postgres: PostgresServer) -> Start:
    settings = ServiceSettings(drain_s=5)
    plan = ServingPlan(list(MODEL.classes), model=MODEL.path, method=MODEL.method, settings=settings)
    told = ReplicaPlan(plan, postgres.make_database(), None, "error", list_versions())
    return lambda: run_replicas(cluster[0], told, ReplicaCount(2, cpus=0.25))


@pytest.fixture(scope="module")
def url(start: Start) -> Iterator[str]:
    with start() as made:
        yield made
    end = time.monotonic() + TIMEOUT
    while left := find_processes(os.getpid(), REPLICA):
        assert time.monotonic() < end, left  # the cluster is clean
        time.sleep(0.1)


@pytest.mark.ray
@pytest.mark.flaky(reruns=1)  # Ray has time limits of its own
def test_replicas_and_the_database_are_killed_under_load(url: str, postgres: PostgresServer) -> None:
    chance, own = random.Random(0), os.getpid()
    with SteadyCameras(url, MODEL, CAMERAS, PAUSE) as cameras:
        assert cameras.wait_for_answer()
        kill_replica(own, 2, chance)
        assert cameras.wait_for_answer()
        postgres.stop("immediate")
        postgres.start()
        assert cameras.wait_for_answer()
        kill_replica(own, 2, chance)
        assert cameras.wait_for_answer()
        assert cameras.finish() == []
    with lmr.Client(url) as client:
        spec = client.model()["spec"]
    gap = cameras.compare(spec, watched=True)
    assert gap.labels == 0
    assert gap.probability < 1e-4
    assert gap.state < 1e-3
    assert cameras.acknowledged >= CAMERAS


@pytest.mark.ray
def test_requests_that_name_their_stream_stay_with_its_replica(url: str) -> None:
    image = draw_image(1, MODEL.side)
    with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
        for name in ("stay-1", "stay-2", "stay-3"):
            headers = {"Content-Type": "image/png", STREAM_HEADER: name}
            path = f"/v1/streams/{name}/images"
            assert [client.post(path, content=image, headers=headers).status_code for _ in range(6)] == [200] * 6


@pytest.mark.ray
def test_clients_that_name_no_stream_in_a_header_are_right_too(url: str) -> None:
    """Their requests go anywhere; the store refuses those that would rest on an old state."""
    image, seqs, end = draw_image(1, MODEL.side), list[int](), time.monotonic() + TIMEOUT
    with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
        while len(seqs) < 8 and time.monotonic() < end:
            headers = {"Content-Type": "image/png", "Idempotency-Key": f"k{len(seqs)}"}
            answer = client.post("/v1/streams/anywhere/images", content=image, headers=headers)
            if answer.status_code == 200:
                seqs.append(answer.json()["seq"])
            else:
                assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stream_moved")
    assert seqs == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.ray
def test_operators_see_the_streams_of_all_replicas(url: str) -> None:
    names = [f"seen-{number}" for number in range(4)]
    with lmr.Client(url) as client:
        for name in names:
            client.step(name, draw_image(2, MODEL.side))
        assert set(names) <= {one.stream for one in client.streams()}
        assert client.stream(names[0]).status.seq == 1
        assert client.pause(names[0]).adapts is False
        assert client.step(names[0], draw_image(3, MODEL.side)).adaptation["stepped"] is False
        client.delete(names[1])
        assert names[1] not in {one.stream for one in client.streams()}
        assert client.readiness() == "ready"


@pytest.mark.ray
def test_second_service_is_refused_and_changes_nothing(url: str, start: Start) -> None:
    with pytest.raises(LmrError, match="A service of lmr runs on this cluster already"), start():
        pass
    with lmr.Client(url) as client:
        assert client.readiness() == "ready"
