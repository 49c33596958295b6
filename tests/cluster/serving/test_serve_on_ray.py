"""``lmr serve --ray``: what it refuses before anything is started."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fake_ray import FakeFuture, FakeRay
from lmr import LmrError
from lmr.apps.model_options import choose_prompts
from lmr.apps.serve import ServingPlan
from lmr.cluster.nodes import Node, list_versions
from lmr.cluster.serving import ray_service
from lmr.cluster.serving import serve_on_ray as module
from lmr.cluster.serving.ray_service import RayService, ReplicaCount, import_serve
from lmr.service.settings import ServiceSettings
from predict_runs import posix
from ray_maker import taking_interrupts

NAMES = ["red ring", "blue star"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "needs a --store"),
        ({"state_dir": "here", "partitions": 0}, "at least one partition, got 0"),
        ({"state_dir": "here", "host": "0.0.0.0"}, "needs a --token-file"),
    ],
)
def test_what_cannot_be_served_starts_no_cluster(
    given: dict[str, object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connect", None)
    with pytest.raises(LmrError, match=error):
        module.serve_on_ray("local", ServingPlan(NAMES), replicas=ReplicaCount(), **given)  # type: ignore[arg-type]
    loose = ServingPlan(NAMES, settings=ServiceSettings(durability="interval"))
    with pytest.raises(LmrError, match="leave --durability out"):
        module.serve_on_ray("local", loose, replicas=ReplicaCount(), state_dir="here")


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


def test_room_for_replicas_is_counted_by_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Serve would wait for ever for two cores of two nodes."""
    ray, plan = FakeRay(lambda node, run: None, a=1, b=3), Any
    monkeypatch.setattr(ray_service, "FREE_SECONDS", 0.0)
    RayService(ray, plan, {}, tmp_path, replicas=ReplicaCount(1, cpus=2.0))._check_room()
    RayService(ray, plan, {}, tmp_path, replicas=ReplicaCount(16, cpus=0.25))._check_room()
    with pytest.raises(LmrError, match="have room for 1 replicas with 2 free cores each on one node, and 2 are to be"):
        RayService(ray, plan, {}, tmp_path, replicas=ReplicaCount(2, cpus=2.0))._check_room()
    with pytest.raises(LmrError, match="room for 0 replicas with 1 free cores and 1 GPUs each"):
        RayService(ray, plan, {}, tmp_path, replicas=ReplicaCount(1, gpus=1.0))._check_room()


class Controller:
    """Serve's controller, which fails."""

    def __init__(self, ray: FakeRay, error: str) -> None:
        fail = FakeFuture(getattr(ray.exceptions, error)())
        self._controller = SimpleNamespace(
            update_deployment_replicas=SimpleNamespace(remote=lambda target, replicas: fail)
        )


def test_serve_that_does_not_scale_leaves_the_service_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray, said = FakeRay(lambda node, run: None, a=2), list[str]()
    service = RayService(ray, Any, {}, tmp_path, replicas=ReplicaCount(2))
    for client in (Controller(ray, "ActorDiedError"), Controller(ray, "GetTimeoutError"), None):
        monkeypatch.setattr(service, "_find_client", lambda found=client: found)
        module._scale(service, 3, said.append)
    assert service.replicas == 2
    assert [message.partition("; ")[2] for message in said] == [*2 * ["try it again."], "start the service again."]


def test_replica_without_room_is_said_to_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray, said = FakeRay(lambda node, run: None, a=2), list[str]()
    service = RayService(ray, Any, {}, tmp_path, replicas=ReplicaCount(2))
    monkeypatch.setattr(service, "scale", lambda replicas: setattr(service, "replicas", replicas))
    module._scale(service, 3, said.append)
    ray.taken["a" * 56] = 2
    module._scale(service, 4, said.append)
    module._scale(service, 3, said.append)
    waits = "; the new one waits: no node has free cores for it"
    assert [message.endswith(waits) for message in said] == [False, True, False]


def test_port_that_is_taken_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = FakeRay(lambda node, run: None, a=1)
    service = RayService(ray, Any, {}, tmp_path, port=8080, ends_with_ray=True)

    def fail(**given: object) -> None:
        cause = RuntimeError("Failed to bind to address '127.0.0.1:8080'.")
        message = f"Traceback\n  File proxy.py, in ready\nRuntimeError: {cause}\n"
        raise ray.exceptions.RayTaskError("ready", message, cause).as_instanceof_cause()

    monkeypatch.setattr(service, "_find_client", lambda: None)
    monkeypatch.setattr(service, "_serve", SimpleNamespace(start=fail))
    message = r"^Ray Serve cannot be started: Failed to bind to address '127\.0\.0\.1:8080'; choose another --port"
    with pytest.raises(LmrError, match=message):
        service._start_serve()


@pytest.mark.parametrize("error", ["GetTimeoutError", "ActorDiedError"])
def test_store_that_does_not_close_is_ended_all_the_same(error: str, tmp_path: Path) -> None:
    """It would keep its name and its file, and the next service could not start."""
    ray = FakeRay(lambda node, run: None, a=1)
    service = RayService(ray, Any, {}, tmp_path)
    fail = FakeFuture(getattr(ray.exceptions, error)())
    actor: Any = SimpleNamespace(close=SimpleNamespace(remote=lambda: fail))
    service._stack.callback(service._try, lambda: service._end_store(actor))
    service.stop()
    assert ray.killed == [actor]


def test_nodes_with_other_versions_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextlib.contextmanager
    def connect(*given: object) -> Iterator[None]:
        yield

    node = Node("id", "old", 2, 0, list_versions() | {"torch": "0"}, 0.0)
    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "import_serve", lambda: None)
    monkeypatch.setattr(module, "find_nodes", lambda ray: [node])
    monkeypatch.setattr(module, "RayService", None)
    plan = ServingPlan(NAMES, model="pocket")
    with pytest.raises(LmrError, match=r"The node old has torch 0 \(here .*Install the same versions on every node"):
        module.serve_on_ray("auto", plan, replicas=ReplicaCount(), state_dir=tmp_path)


@posix
def test_interrupt_ends_a_start_that_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Waiting:
        def __init__(self, *given: object, **named: object) -> None: ...

        def __enter__(self) -> None:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("It would wait for ever.")

        def __exit__(self, *problem: object) -> None: ...

    @contextlib.contextmanager
    def connect(*given: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "import_serve", lambda: None)
    monkeypatch.setattr(module, "RayService", Waiting)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)  # for the tests after this one
    plan = ServingPlan(NAMES, model="pocket")
    with taking_interrupts(), pytest.raises(KeyboardInterrupt):
        module.serve_on_ray("local", plan, replicas=ReplicaCount(), state_dir=tmp_path)
