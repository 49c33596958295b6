"""``lmr serve --ray``: what it refuses before anything is started."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_ray import FakeRay
from predict_runs import posix
from ray_maker import taking_interrupts

from lmr import LmrError
from lmr.apps.serve_classifier import plan_service
from lmr.cluster.serving import ray_service
from lmr.cluster.serving import serve_on_ray as module
from lmr.cluster.serving.ray_service import RayService, ReplicaCount, import_serve
from lmr.service.service_settings import ServiceSettings

NAMES = "red ring,blue star"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "needs a --state-dir"),
        ({"state_dir": "here", "partitions": 0}, "at least one partition, got 0"),
        ({"state_dir": "here", "host": "0.0.0.0"}, "needs a --token-file"),
    ],
)
def test_what_cannot_be_served_starts_no_cluster(
    given: dict[str, object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connect", None)
    with pytest.raises(LmrError, match=error):
        module.serve_on_ray("local", plan_service(NAMES), replicas=ReplicaCount(), **given)  # type: ignore[arg-type]
    loose = plan_service(NAMES, settings=ServiceSettings(durability="interval"))
    with pytest.raises(LmrError, match="leave --durability out"):
        module.serve_on_ray("local", loose, replicas=ReplicaCount(), state_dir="here")


@pytest.mark.parametrize(("bounds", "words"), [((0,), "got 0"), ((3, 2), "got 3:2"), ((1, None, 0.0), "cores")])
def test_wrong_numbers_of_replicas(bounds: tuple[int, ...], words: str) -> None:
    with pytest.raises(LmrError, match=words):
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
    assert module._spread(plan_service(NAMES, prompts=path)).wording == content
    assert module._spread(plan_service(NAMES, templates=["a {}."])).wording == ["a {}."]


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
    plan = plan_service(NAMES, model="pocket")
    with taking_interrupts(), pytest.raises(KeyboardInterrupt):
        module.serve_on_ray("local", plan, replicas=ReplicaCount(), state_dir=tmp_path)
