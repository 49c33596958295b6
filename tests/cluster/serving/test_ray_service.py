"""The proof of docs/scale.md on two local nodes, short: replicas come, go and die, and no answer shows it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

import lmr
from lab.load.cameras import SteadyCameras
from lab.load.inputs import draw_image, find_pocket
from lab.load.replicas import REPLICA, STORE, find_processes, kill_replica
from lmr import LmrError
from lmr.apps.serve import ServingPlan, describe_states
from lmr.cluster.nodes import list_versions
from lmr.cluster.serving.ray_service import VARIABLES, RayService, ReplicaCount, import_serve
from lmr.cluster.serving.replica import ReplicaPlan
from lmr.service.client.client import STREAM_HEADER
from lmr.service.settings import ServiceSettings
from ray_maker import make_cluster

pytestmark = pytest.mark.ray
MODEL, CAMERAS = find_pocket(), 4
PAUSE = 0.1  # seconds between the requests of a camera: processes that start need the cores, too
TIMEOUT = 120.0  # seconds; against hanging alone
Start = Callable[[], RayService]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    import_serve()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)  # nodes of this cluster are started by the test
        with make_cluster() as (ray, _):
            settings = ServiceSettings(drain_s=5)
            plan = ServingPlan(list(MODEL.classes), model=MODEL.path, method=MODEL.method, settings=settings)
            identity = describe_states(plan.load()[1], plan.watch)
            folder = tmp_path_factory.mktemp("states")
            told = ReplicaPlan(plan, None, "error", list_versions())
            count = ReplicaCount(2, cpus=0.25)
            yield lambda: RayService(ray, told, identity, folder, partitions=2, replicas=count)


@pytest.fixture(scope="module")
def service(start: Start) -> Iterator[RayService]:
    with start() as made:
        yield made
    end = time.monotonic() + TIMEOUT
    while left := [*find_processes(os.getpid(), REPLICA), *find_processes(os.getpid(), STORE)]:
        assert time.monotonic() < end, left  # the cluster is clean
        time.sleep(0.1)


def test_replicas_come_go_and_are_killed_under_load(service: RayService) -> None:
    chance, own = random.Random(0), os.getpid()
    with SteadyCameras(service.url, MODEL, CAMERAS, PAUSE) as cameras:
        assert cameras.wait_for_answer()
        service.scale(3)
        kill_replica(own, 3, chance)
        assert cameras.wait_for_answer()
        os.kill(find_processes(own, STORE)[0], signal.SIGKILL)
        assert cameras.wait_for_answer()
        kill_replica(own, 3, chance)
        service.scale(2)
        assert cameras.wait_for_answer()
        kill_replica(own, 2, chance)
        assert cameras.wait_for_answer()
        assert cameras.finish() == []
    with lmr.Client(service.url) as client:
        spec = client.model()["spec"]
    gap = cameras.compare(spec, watched=True)
    assert gap.labels == 0
    assert gap.probability < 1e-4
    assert gap.state < 1e-3
    assert cameras.acknowledged >= CAMERAS


def test_requests_that_name_their_stream_stay_with_its_replica(service: RayService) -> None:
    image = draw_image(1, MODEL.side)
    with httpx.Client(base_url=service.url, timeout=TIMEOUT) as client:
        for name in ("stay-1", "stay-2", "stay-3"):
            headers = {"Content-Type": "image/png", STREAM_HEADER: name}
            url = f"/v1/streams/{name}/images"
            assert [client.post(url, content=image, headers=headers).status_code for _ in range(6)] == [200] * 6


def test_clients_that_name_no_stream_in_a_header_are_right_too(service: RayService) -> None:
    """Their requests go anywhere; the fence refuses those that would rest on an old state."""
    image, seqs, end = draw_image(1, MODEL.side), list[int](), time.monotonic() + TIMEOUT
    with httpx.Client(base_url=service.url, timeout=TIMEOUT) as client:
        while len(seqs) < 8 and time.monotonic() < end:
            headers = {"Content-Type": "image/png", "Idempotency-Key": f"k{len(seqs)}"}
            answer = client.post("/v1/streams/anywhere/images", content=image, headers=headers)
            if answer.status_code == 200:
                seqs.append(answer.json()["seq"])
            else:
                assert (answer.status_code, answer.json()["error"]["code"]) == (409, "stream_moved")
    assert seqs == [1, 2, 3, 4, 5, 6, 7, 8]


def test_operators_see_the_streams_of_all_replicas(service: RayService) -> None:
    names = [f"seen-{number}" for number in range(4)]
    with lmr.Client(service.url) as client:
        for name in names:
            client.step(name, draw_image(2, MODEL.side))
        assert set(names) <= {one.stream for one in client.streams()}
        assert client.stream(names[0]).status.seq == 1
        assert client.pause(names[0]).adapts is False
        assert client.step(names[0], draw_image(3, MODEL.side)).adaptation["stepped"] is False
        client.delete(names[1])
        assert names[1] not in {one.stream for one in client.streams()}
        assert client.readiness() == "ready"


def test_what_cannot_be_is_said_and_changes_nothing(service: RayService, start: Start) -> None:
    with pytest.raises(LmrError, match="A service of lmr runs on this cluster already"), start():
        pass
    with pytest.raises(LmrError, match="at least one replica, got 0"):
        service.scale(0)
    with lmr.Client(service.url) as client:
        assert client.readiness() == "ready"
