"""POST images: the shape of the answer, errors in their positions, keys, clients that go, the order of requests."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

import httpx
import pytest
import torch

from hostile_images import make_jpeg
from lmr.images.isolated import IsolatedDecoder
from lmr.service.app.images import ReadyImages
from lmr.service.settings import ServiceSettings
from pocket import load_pocket
from service_maker import NAMES, TIMEOUT, ScriptedService, make_file, serve_scripted

Left = Callable[[], float]  # seconds


def wait_until(happens: object) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not happens() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.01)
    assert happens()  # type: ignore[operator]


def test_answer_has_the_documented_shape(service: ScriptedService) -> None:
    answer = service.post("cam-17")
    assert answer.status_code == 200
    assert answer.json() == {
        "stream": "cam-17",
        "seq": 1,
        "saved": True,
        "answers": [
            {
                "label": "red ring",
                "probability": 0.9,
                "known": None,
                "top": [["red ring", 0.9], ["blue star", 0.1], ["green heart", 0.1]],
            }
        ],
        "adaptation": {"mode": "adapt", "stepped": True, "health": "ok"},
        "timing": {"queue_ms": 1.0, "step_ms": 2.0, "batch_images": 1, "batch_streams": 1},
        "model": "pocket",
        "spec": "zeroshot()",
    }
    (request,) = service.engine.requests
    assert torch.equal(request.images, load_pocket().preprocess([make_file()]))
    assert (request.mode, request.key) == ("adapt", None)


def test_unreadable_image_is_an_error_in_its_place(service: ScriptedService) -> None:
    parts = [("image", ("a", b"no image")), ("image", ("b", make_file())), ("image", ("c", make_file()[:300]))]
    answer = service.client.post("/v1/streams/a/images", files=parts)
    assert answer.status_code == 200
    first, second, third = answer.json()["answers"]
    assert set(first) == set(third) == {"error"}
    assert second["label"] == "red ring"
    assert len(service.engine.requests[0].images) == 1


def test_mode_and_top(service: ScriptedService) -> None:
    answer = service.post(params={"top": 1, "mode": "answer"})
    assert answer.json()["answers"][0]["top"] == [["red ring", 0.9]]
    assert answer.json()["adaptation"]["mode"] == "answer"
    assert service.post(params={"top": 500}).json()["answers"][0]["top"][-1][0] == NAMES[-1]
    # There may be more classes when it is computed.
    assert [request.top for request in service.engine.requests] == [1, 500]
    for wrong in ({"top": 0}, {"top": 1001}, {"mode": "learn"}):
        assert service.post(params=wrong).status_code == 400
    assert len(service.engine.requests) == 2


def test_key(service: ScriptedService) -> None:
    assert "Idempotency-Replayed" not in service.post(headers={"Idempotency-Key": "frame-1"}).headers
    assert service.engine.requests[0].key == "frame-1"
    for wrong in ("", "k" * 201, "two words"):
        assert service.post(headers={"Idempotency-Key": wrong}).status_code == 400
    assert len(service.engine.requests) == 1


@pytest.mark.parametrize("name", ["a" * 129, "-a", ".", "..", "a b", "a:b", "ä", "<b>", "a%2Fb", "a%0A"])
def test_names_of_streams(service: ScriptedService, name: str) -> None:
    answer = service.client.post(
        f"/v1/streams/{name}/images", content=make_file(), headers={"Content-Type": "image/jpeg"}
    )
    assert answer.status_code in (400, 404, 405)  # a path with dots or slashes is another path
    assert not service.engine.requests


def test_client_that_goes_is_dropped(service: ScriptedService) -> None:
    service.engine.hold = True
    host, port = service.server.url.removeprefix("http://").split(":")
    image = make_file()
    with socket.create_connection((host, int(port))) as made:
        head = "POST /v1/streams/a/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        made.sendall(f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image)
        wait_until(lambda: service.engine.held)
        assert not service.engine.dropped
    wait_until(lambda: service.engine.dropped)
    assert service.engine.dropped == service.engine.held
    service.engine.held[0].set_exception(RuntimeError("too late"))  # nobody listens any more


def test_client_that_goes_while_its_images_are_decoded_never_reaches_the_engine(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, connections = service.server.service.steps.decoder, service.server._uvicorn.server_state.connections
    plain, begun, go = decoder.decode, threading.Event(), threading.Event()

    def decode(files: Sequence[bytes], left: Left) -> ReadyImages:
        begun.set()
        assert go.wait(TIMEOUT)
        return plain(files, left)

    def count_gone() -> float:
        labels = {"route": "/v1/streams/{stream}/images", "code": "499"}
        return service.server.service.metrics.registry.get_sample_value("lmr_requests_total", labels) or 0.0

    monkeypatch.setattr(decoder, "decode", decode)
    before, others = count_gone(), set(connections)
    image = make_file() + bytes(200_000)  # more than uvicorn takes before it is asked for it
    host, port = service.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as made:
        head = "POST /v1/streams/a/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        made.sendall(f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image)
        assert begun.wait(TIMEOUT)
    try:
        wait_until(lambda: not set(connections) - others)
    finally:
        go.set()
    wait_until(lambda: count_gone() > before)
    assert not service.engine.requests


def post_form(service: ScriptedService, *images: bytes) -> httpx.Response:
    files = [("image", (f"{number}.jpg", content)) for number, content in enumerate(images)]
    return service.client.post("/v1/streams/cam/images", files=files)


def test_requests_of_a_stream_are_in_order_however_long_their_images_take(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = service.server.service.steps.decoder
    plain, begun, second = decoder.decode, threading.Event(), threading.Event()

    def decode(files: Sequence[bytes], left: Left) -> ReadyImages:
        if len(files) == 1:  # the second request is decoded while the first one is
            ready = plain(files, left)
            second.set()
            return ready
        begun.set()
        assert second.wait(TIMEOUT)
        time.sleep(0.05)  # it would be submitted by now
        return plain(files, left)

    monkeypatch.setattr(decoder, "decode", decode)
    sender = threading.Thread(target=post_form, args=(service, make_file(), make_file()))
    sender.start()
    assert begun.wait(TIMEOUT)
    assert service.post().status_code == 200
    sender.join(TIMEOUT)
    assert [len(request.images) for request in service.engine.requests] == [2, 1]


def hold_first(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Hold up the first request while its images are decoded: set once it is there, and to be set to let it go on."""
    decoder = service.server.service.steps.decoder
    plain, begun, go = decoder.decode, threading.Event(), threading.Event()

    def decode(files: Sequence[bytes], left: Left) -> ReadyImages:
        if not begun.is_set():
            begun.set()
            assert go.wait(TIMEOUT)
        return plain(files, left)

    monkeypatch.setattr(decoder, "decode", decode)
    return begun, go


def test_images_that_wait_for_an_earlier_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request of the stream takes long, and small files become large inputs of the model."""
    with serve_scripted(ServiceSettings(queue_images=6, max_images=2)) as made:
        begun, go = hold_first(made, monkeypatch)
        codes: list[int] = []
        senders = [
            threading.Thread(target=lambda: codes.append(post_form(made, make_file(), make_file()).status_code))
            for _ in range(5)
        ]
        senders[0].start()
        try:
            assert begun.wait(TIMEOUT)
            for sender in senders[1:]:
                sender.start()
            wait_until(lambda: len(codes) == 2)  # three requests hold six images
            assert codes == [429, 429]
        finally:
            go.set()
            for sender in senders:
                sender.join(TIMEOUT)
        assert sorted(codes) == [200] * 3 + [429] * 2
        assert [len(request.images) for request in made.engine.requests] == [2] * 3
        assert made.post().status_code == 200  # what was handed on does not count


def test_deadline_ends_the_wait_for_images_that_are_decoded(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = service.server.service.steps.decoder
    go = threading.Event()
    monkeypatch.setattr(decoder, "decode", lambda files, left: go.wait(TIMEOUT))
    monkeypatch.setattr(service.engine, "settings", ServiceSettings(timeout_ms=50))
    started = time.monotonic()
    try:
        answer = service.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_passed")
        assert "before the images were decoded" in answer.json()["error"]["message"]
        assert time.monotonic() - started < TIMEOUT / 2
    finally:
        go.set()
    monkeypatch.undo()
    assert service.post().status_code == 200
    assert decoder._decoded == 0
    assert len(service.engine.requests) == 1


def test_images_that_cost_much_hold_up_nobody_else(service: ScriptedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes longer than its time; there are more of them than threads."""
    decoder = service.server.service.steps.decoder
    costly, codes = make_jpeg((4000, 3000), 60), list[int]()

    def send() -> None:
        codes.append(service.post("bad", content=costly).status_code)

    monkeypatch.setattr(service.engine, "settings", ServiceSettings(timeout_ms=2000))

    senders = [threading.Thread(target=send) for _ in range(6)]
    with Paused(decoder._isolated):
        for sender in senders:
            sender.start()
        for _ in range(3):
            assert service.post("good").status_code == 200
        for sender in senders:
            sender.join(TIMEOUT)
    assert set(codes) <= {422, 504}
    assert len(codes) == 6
    assert {request.stream for request in service.engine.requests} == {"good"}


class Paused:
    """A context in which the processes that decode stand still."""

    def __init__(self, decoder: IsolatedDecoder) -> None:
        self._decoder, self._plain = decoder, decoder._take

    def __enter__(self) -> None:
        def take() -> subprocess.Popen[bytes]:
            process = self._plain()
            process.send_signal(signal.SIGSTOP)
            return process

        self._decoder._take = take  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._decoder._take = self._plain  # type: ignore[method-assign]
