"""Streams, the model, the probes and the metrics over HTTP."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

import lmr
from lmr.service.app.images import MOST_FRAMES, Frame, RecentFrames
from lmr.service.engine.requests import (
    QueuedImage,
)
from lmr.service.engine.status import Overview, StreamStatus
from lmr.service.settings import ServiceSettings
from scripted_engine import make_status
from service_maker import NAMES, ScriptedService, make_file, serve_scripted


def give(value: object, error: Exception | None = None) -> Future[object]:
    future: Future[object] = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
    return future


def test_pages_follow_the_cursor(service: ScriptedService) -> None:
    names = [f"cam-{number}" for number in range(5)]
    service.engine.statuses.update({name: make_status(name) for name in names})
    found, after = [], ""
    for _ in range(4):
        page = service.client.get("/v1/streams", params={"limit": 2, "after": after}).json()
        found += [status["stream"] for status in page["streams"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == names
    for wrong in ({"limit": 1001}, {"limit": 0}, {"after": "x" * 129}, {"after": "\0"}, {"after": "a b"}):
        assert service.client.get("/v1/streams", params=wrong).status_code == 400


@pytest.mark.parametrize("action", ["reset", "rollback", "pause", "resume"])
def test_actions(service: ScriptedService, action: str) -> None:
    service.engine.statuses["cam"] = make_status("cam")
    answer = service.client.post(f"/v1/streams/cam:{action}")
    assert answer.status_code == 200
    assert answer.json()["stream"] == "cam"
    assert service.engine.acts == [("cam", action)]
    assert service.client.post(f"/v1/streams/other:{action}").status_code == 404


def test_state_is_a_file(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, bytes]] = []

    def write(stream: str, content: bytes) -> Future[object]:
        written.append((stream, content))
        return give(make_status(stream))

    monkeypatch.setattr(service.engine, "read_state", lambda stream: give(b"\x00state"))
    monkeypatch.setattr(service.engine, "write_state", write)
    answer = service.client.get("/v1/streams/cam/state")
    assert answer.content == b"\x00state"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="cam.state"'
    assert service.client.put("/v1/streams/cam/state", content=answer.content).status_code == 200
    assert written == [("cam", b"\x00state")]
    assert service.client.put("/v1/streams/cam/state", content=b"").status_code == 400


def test_labels(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, list[str | None], bool]] = []

    def add(stream: str, seq: int, labels: Sequence[str | None], *, teach: bool) -> Future[StreamStatus]:
        told.append((stream, seq, list(labels), teach))
        return give(make_status(stream, labelled=1))  # type: ignore[return-value]

    monkeypatch.setattr(service.engine, "add_labels", add)
    answer = service.client.post("/v1/streams/cam/labels", json={"seq": 3, "labels": ["red ring", None]})
    assert answer.json()["labelled"] == 1
    assert told == [("cam", 3, ["red ring", None], True)]
    for wrong in ({}, {"seq": 0, "labels": ["a"]}, {"seq": 1, "labels": []}, {"seq": 1, "labels": [3]}):
        assert service.client.post("/v1/streams/cam/labels", json=wrong).status_code == 400
    assert len(told) == 1


def test_queue_prefers_images_with_frames(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = [QueuedImage(seq, image, 2) for seq in range(1, 20) for image in range(2)]
    monkeypatch.setattr(service.engine, "list_unlabelled", lambda stream: queue)
    monkeypatch.setattr(service.engine, "ask_labels", lambda stream, images: give(images))
    frames = RecentFrames()
    for seq, image in ((3, 1), (7, 0), (50, 0), (8, None)):
        frames.add("cam", Frame(seq, "red ring", 0.9, None, f"copy {seq}", image))
    found = service.client.get("/v1/streams/cam/label-queue").json()["images"]
    assert (len(found), {one["b64"] for one in found}) == (10, {None})
    orders = set()
    monkeypatch.setattr(service.server.service, "frames", frames)
    for _ in range(20):
        found = service.client.get("/v1/streams/cam/label-queue?n=32").json()["images"]
        assert {(one["seq"], one["image"]) for one in found} < {(one.seq, one.image) for one in queue}
        assert [one["b64"] for one in found[2:]] == [None] * 30
        assert {(one["seq"], one["image"], one["b64"]) for one in found[:2]} == {(3, 1, "copy 3"), (7, 0, "copy 7")}
        orders.add(tuple(one["seq"] for one in found))
    assert len(orders) > 15
    for wrong in ("0", "33", "x"):
        assert service.client.get("/v1/streams/cam/label-queue", params={"n": wrong}).status_code == 400


def test_no_frames_are_kept_unless_asked_for(service: ScriptedService) -> None:
    service.post()
    assert service.client.get("/v1/streams/cam/frames").status_code == 404
    assert service.server.service.frames is None


def test_frozen_answers_come_where_they_are_asked_for(service: ScriptedService) -> None:
    (plain,) = service.post().json()["answers"]
    (both,) = service.post(params={"compare": "true"}).json()["answers"]
    assert set(plain) == {"label", "probability", "known", "top"}
    assert both == plain | {"frozen": "blue star", "frozen_top": [["blue star", 0.6], ["red ring", 0.4]]}
    assert service.post(params={"compare": "perhaps"}).status_code == 400


@pytest.fixture(scope="module")
def showing() -> Iterator[ScriptedService]:
    with serve_scripted(ServiceSettings(show_frames=True)) as made:
        yield made


def test_frames_are_small_and_few(showing: ScriptedService) -> None:
    for number in range(MOST_FRAMES + 3):
        showing.post(content=make_file(size=(400, 300)) if number else make_file())
    frames = showing.client.get("/v1/streams/cam/frames").json()["frames"]
    assert len(frames) == MOST_FRAMES
    assert [frame["seq"] for frame in frames] == list(range(4, MOST_FRAMES + 4))
    image = Image.open(io.BytesIO(base64.b64decode(frames[-1]["b64"])))
    assert (image.format, image.size) == ("WEBP", (96, 72))
    assert (frames[-1]["label"], frames[-1]["probability"], frames[-1]["frozen"]) == ("red ring", 0.9, None)
    showing.post(params={"compare": True})
    (last,) = showing.client.get("/v1/streams/cam/frames", params={"limit": 1}).json()["frames"]
    assert (last["seq"], last["frozen"]) == (MOST_FRAMES + 4, "blue star")
    assert showing.client.get("/v1/streams/cam/frames", params={"limit": 0}).status_code == 400
    assert showing.client.get("/v1/streams/other/frames").json() == {"frames": []}


def test_frames_of_a_deleted_stream_are_gone(showing: ScriptedService) -> None:
    showing.engine.statuses.clear()
    showing.post("gone")
    assert showing.client.get("/v1/streams/gone/frames").json()["frames"]
    assert showing.client.delete("/v1/streams/gone").status_code == 200
    assert showing.client.get("/v1/streams/gone/frames").json()["frames"] == []


def test_model(service: ScriptedService) -> None:
    card = service.client.get("/v1/model").json()
    assert (card["model"], card["classes"], card["spec"], card["watch"]) == ("pocket", NAMES, "zeroshot()", "off")
    assert card["settings"]["max_images"] == 32
    assert card["version"] == lmr.__version__


@pytest.mark.parametrize(("state", "code"), [("ready", 200), ("degraded", 200), ("closed", 503)])
def test_readiness(service: ScriptedService, state: str, code: int) -> None:
    service.engine.overview = Overview(state, "The disk is full." if state == "degraded" else "")  # type: ignore[arg-type]
    try:
        answer = service.client.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (code, state)
        assert answer.json().get("reason") == ("The disk is full." if state == "degraded" else None)
        assert service.client.get("/healthz").status_code == 200
    finally:
        service.engine.overview = Overview("ready")


def test_metrics(service: ScriptedService) -> None:
    service.engine.overview = Overview("ready", by_health={"ok": 3, "suspected": 1}, queue_images=7, store_bytes=1000)
    service.post()
    service.post(content=b"no image")
    labels: dict[str, Any] = {"estimated_accuracy": 0.71, "estimated_interval": (0.58, 0.82), "estimated_labels": 24}
    service.engine.statuses["labelled"] = make_status("labelled", **labels)
    text = service.client.get("/metrics").text
    service.engine.overview = Overview("ready")
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    route = ("route", "/v1/streams/{stream}/images")
    assert found["lmr_requests_total", (("code", "200"), route)] >= 1
    assert found["lmr_requests_total", (("code", "422"), route)] >= 1
    assert found["lmr_images_total", ()] >= 1
    assert found["lmr_steps_total", ()] >= 1
    assert found["lmr_queue_images", ()] == 7
    assert found["lmr_store_bytes", ()] == 1000
    assert found["lmr_streams", (("health", "suspected"),)] == 1
    assert found["lmr_batch_images_count", ()] >= 1
    assert found["lmr_commit_seconds_sum", ()] > 0
    assert found["lmr_ready", ()] == 1
    named = {name: value for (name, labels), value in found.items() if "stream" in dict(labels)}
    assert named == {  # of streams with labels alone
        "lmr_estimated_accuracy": 0.71,
        "lmr_estimated_accuracy_low": 0.58,
        "lmr_estimated_accuracy_high": 0.82,
        "lmr_estimated_labels": 24,
    }
    del service.engine.statuses["labelled"]


def test_openapi_describes_every_route(service: ScriptedService) -> None:
    described = service.client.get("/openapi.json").json()
    paths = described["paths"]
    assert "/v1/streams/{stream}/images" in paths
    for path, verbs in paths.items():
        for route in verbs.values():
            assert route.get("description"), path
            assert route["summary"], path
            assert {"4XX", "5XX"} <= set(route["responses"]), path
    kinds = set(paths["/v1/streams/{stream}/images"]["post"]["requestBody"]["content"])
    assert kinds == {"image/jpeg", "image/png", "image/webp", "multipart/form-data"}
