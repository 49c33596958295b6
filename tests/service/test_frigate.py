"""The bridge to Frigate: a stand-in of its routes, a real broker, and a service that answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.cli import main
from lmr.service import frigate, mqtt
from lmr.service.frigate import FrigateBridge, TrackedObject
from lmr.service.settings import FrigateOptions
from mosquitto import WAIT, Broker, Subscriber, needs_broker, run_broker
from scripted_service import ScriptedService, run_scripted_service
from service_maker import make_file

IMAGE = make_file()
LABEL = f"{len(IMAGE)} bytes"  # what the service answers


@dataclass
class Frigate:
    """GET /api/events/<id>/snapshot.jpg and POST /api/events/<id>/sub_label; ``script`` has codes to fail with."""

    url: str = ""
    script: list[int] = field(default_factory=list)
    image: bytes = IMAGE
    asked: list[str] = field(default_factory=list)
    labels: dict[str, list[Any]] = field(default_factory=dict)

    def wait_for(self, name: str, count: int = 1) -> None:
        end = time.monotonic() + WAIT
        while len(self.labels.get(name, [])) < count:
            assert time.monotonic() < end, (self.asked, self.labels)
            time.sleep(0.01)


@contextmanager
def run_frigate_server() -> Iterator[Frigate]:
    stand_in = Frigate()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            stand_in.asked.append(self.path)
            code = stand_in.script.pop(0) if stand_in.script else 200
            self._answer(code, stand_in.image if code == 200 else b"{}")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            _, api, events, name, route = self.path.split("/")
            assert (api, events, route) == ("api", "events", "sub_label")
            assert 0 < body["subLabelScore"] <= 1
            assert len(body["subLabel"]) <= 100
            code = stand_in.script.pop(0) if stand_in.script else 200
            if code == 200:
                stand_in.labels.setdefault(name, []).append(body)
            self._answer(code, b'{"success": true, "message": "Event sub label set"}')

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def nvr(monkeypatch: pytest.MonkeyPatch) -> Iterator[Frigate]:
    monkeypatch.setattr(frigate, "PAUSE", 0.01)
    with run_frigate_server() as found:
        yield found


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with run_scripted_service() as found:
        yield found


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(mqtt, "_RETRY", (1, 1))
    with run_broker(tmp_path) as found:
        yield found


def make_message(name: str = "1607123955.475377-mxklsc", when: float = 10.0, **values: Any) -> bytes:
    """A message as in Frigate's documentation, with fields that are not used here."""
    after = {
        "id": name, "camera": "front_door", "frame_time": when + 1, "snapshot": {"frame_time": when, "score": 0.77},
        "label": "car", "sub_label": None, "false_positive": False, "end_time": None, "has_snapshot": True, **values,
    }  # fmt: skip
    return json.dumps({"type": "update", "before": {}, "after": after}).encode()


@contextmanager
def run_bridge(nvr: Frigate, service: ScriptedService, url: str, **options: Any) -> Iterator[FrigateBridge]:
    messages: list[str] = []
    with lmr.Client(service.url, patience=options.pop("patience", 60.0)) as client:
        bridge = FrigateBridge(client, FrigateOptions(url, nvr.url, service.url, **options), messages.append)
        bridge.messages = messages  # type: ignore[attr-defined]
        thread = threading.Thread(target=bridge.run)
        thread.start()
        try:
            yield bridge
        finally:
            bridge.stop()
            thread.join(WAIT)
            assert not thread.is_alive()


@needs_broker
def test_objects_get_sub_labels_also_after_the_broker_was_gone(
    broker: Broker, nvr: Frigate, service: ScriptedService
) -> None:
    with run_bridge(nvr, service, broker.url) as bridge:
        for attempt in range(2):
            name = f"1607123955.47-{attempt}"
            with Subscriber(broker) as sender:
                end = time.monotonic() + WAIT
                while name not in nvr.labels:  # nobody keeps messages of a time without a subscription
                    assert time.monotonic() < end
                    sender.client.publish("frigate/events", b"not JSON")
                    sender.client.publish("frigate/events", make_message(name))
                    time.sleep(0.2)
            assert nvr.labels[name] == [{"subLabel": LABEL, "subLabelScore": 0.5}]
            assert f"/api/events/{name}/snapshot.jpg?crop=1" in nvr.asked
            if not attempt:
                broker.stop()
                broker.start()
        assert service.steps["front_door"] == [[IMAGE]] * 2
        assert bridge.summary.written == 2
        assert bridge.summary.bad >= 2
        assert any("trying again" in text for text in bridge.messages)  # type: ignore[attr-defined]


def test_each_snapshot_is_classified_once_and_a_better_one_again(nvr: Frigate, service: ScriptedService) -> None:
    with run_bridge(nvr, service, "mqtt://127.0.0.1:9") as bridge:
        for when in (10.0, 10.0, 12.0):
            bridge.add(make_message("a", when))
            nvr.wait_for("a", 1 if when == 10.0 else 2)
        bridge.add(make_message("a", 12.0, sub_label=[LABEL, 0.5]))  # what the sub-label itself makes
        bridge.add(make_message("b", camera="yard"))
        nvr.wait_for("b")
    assert len(nvr.labels["a"]) == 2
    assert {stream: len(steps) for stream, steps in service.steps.items()} == {"front_door": 2, "yard": 1}


def test_frigate_and_service_may_fail_for_a_while(nvr: Frigate, service: ScriptedService) -> None:
    nvr.script += [503, 200, 500]  # a snapshot at the second time, a sub-label at the second time
    service.script += [(503, {"Retry-After": "0"}), None]
    with run_bridge(nvr, service, "mqtt://127.0.0.1:9") as bridge:
        bridge.add(make_message("a"))
        nvr.wait_for("a")
        nvr.script += [404]
        bridge.add(make_message("gone"))
        nvr.script += [500] * frigate.ATTEMPTS
        bridge.add(make_message("broken"))
        bridge.add(make_message("b"))
        nvr.wait_for("b")
    assert bridge.summary.failed == 2
    assert set(nvr.labels) == {"a", "b"}
    assert len(service.steps["front_door"]) == 2


def test_snapshots_that_are_too_large_or_no_images_are_left_out(
    nvr: Frigate, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frigate, "MOST_BYTES", len(IMAGE) + 1)
    with run_bridge(nvr, service, "mqtt://127.0.0.1:9") as bridge:
        nvr.image = IMAGE + b"  "
        bridge.add(make_message("large"))
        end = time.monotonic() + WAIT
        while not bridge.summary.failed and time.monotonic() < end:
            time.sleep(0.01)
        nvr.image = IMAGE
        bridge.add(make_message("a"))
        nvr.wait_for("a")
    assert (bridge.summary.failed, bridge.summary.written) == (1, 1)


def test_unknown_and_unsure_answers_are_not_written(nvr: Frigate, service: ScriptedService) -> None:
    unknown = {"stream": "front_door", "seq": 1, "saved": True, "adaptation": {}, "timing": {}}
    unknown["answers"] = [{"label": None, "probability": 0.9, "known": 0.1, "top": [["a", 0.9]]}]
    service.script += [(200, {}, unknown)]
    with run_bridge(nvr, service, "mqtt://127.0.0.1:9", least=0.6, objects="car, bus") as bridge:
        bridge.add(make_message("none"))
        bridge.add(make_message("person", label="person"))
        bridge.add(make_message("unsure"))
        end = time.monotonic() + WAIT
        while bridge.summary.unsure < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert not nvr.labels
    assert len(nvr.asked) == 2


def test_the_queue_is_bounded_and_keeps_the_newest(
    nvr: Frigate, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frigate, "MOST_WAITING", 3)
    with lmr.Client(service.url) as client:
        bridge = FrigateBridge(client, FrigateOptions("mqtt://127.0.0.1:9", nvr.url, service.url))
        for k in range(8):
            bridge.add(make_message(f"object-{k}"))
            bridge.add(make_message("object-0", 20.0 + k) if k < 2 else make_message(f"object-{k}", 30.0))
        thread = threading.Thread(target=bridge.run)
        thread.start()
        nvr.wait_for("object-7")
        bridge.stop()
        thread.join(WAIT)
    assert bridge.summary.dropped == 5
    assert set(nvr.labels) == {"object-5", "object-6", "object-7"}


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xff", b"[]", b"{}", b"7", b'{"after": null}', b"[" * 100_000, make_message("../../config"),
        make_message("a/b"), make_message(camera="../x"), make_message(camera=7), make_message(id=None),
        make_message(snapshot={"frame_time": "soon"}), make_message(snapshot={"frame_time": None}),
        b'{"after": {"id": "a", "camera": "b", "label": "c", "frame_time": NaN}}',
        b'{"after": {"id": "a", "camera": "b", "label": "c", "frame_time": 1' + b"0" * 400 + b"}}",
    ],
    ids=range(16),
)  # fmt: skip
def test_bad_messages_are_counted_and_survived(payload: bytes, nvr: Frigate, service: ScriptedService) -> None:
    with lmr.Client(service.url) as client:
        bridge = FrigateBridge(client, FrigateOptions("mqtt://127.0.0.1:9", nvr.url, service.url))
        bridge.add(payload)
        assert bridge.summary.bad == 1
        assert not bridge._waiting


def test_objects_without_a_snapshot_are_left_out() -> None:
    assert TrackedObject.read(make_message(has_snapshot=False)) is None
    assert TrackedObject.read(make_message(false_positive=True)) is None
    assert TrackedObject.read(make_message("a", snapshot=None)) == TrackedObject("a", "front_door", "car", 11.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mqtt", "http://x", "--frigate", "http://h:5000"], "Expected a broker"),
        (["--mqtt", "mqtt://h", "--frigate", "h:5000"], "Expected the address of Frigate"),
        (["--mqtt", "mqtt://h", "--frigate", "http://h", "--least", "2"], "least probability"),
    ],
)
def test_wrong_options_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frigate", *words]) == 2
    assert message in capsys.readouterr().err
