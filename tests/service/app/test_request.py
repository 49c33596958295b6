"""Bodies while they arrive: too large, too slow, cut off, too many at once; and bodies in JSON."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from pydantic import ValidationError

from lmr.service.app.errors import HttpProblem
from lmr.service.app.request import read_json_body
from lmr.service.app.routes import LABELS_BYTES, LabelsBody
from lmr.service.settings import ServiceSettings
from plain_http import read_until_closed
from service_maker import TIMEOUT, ScriptedService, make_file, serve_scripted

LIMIT = 20_000
PATH = "/v1/streams/cam/images"


@pytest.fixture(scope="module")
def small() -> Iterator[ScriptedService]:
    with serve_scripted(ServiceSettings(max_body=LIMIT, timeout_ms=700)) as made:
        yield made


def connect(service: ScriptedService) -> socket.socket:
    host, port = service.server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT)


@pytest.mark.parametrize("path", [PATH, "/v1/streams/cam/labels"])
def test_announced_size_is_refused_before_the_body(small: ScriptedService, path: str) -> None:
    with connect(small) as made:
        made.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
            f"Content-Length: {LIMIT + 1}\r\n\r\n".encode()
        )
        answer = read_until_closed(made)  # the service closes: the body is not wanted
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"20,000 bytes" in answer


def test_size_is_counted_while_it_arrives(small: ScriptedService) -> None:
    def send() -> Iterator[bytes]:
        for _ in range(100):
            yield b"0" * 1000

    try:
        answer = small.client.post(PATH, content=send(), headers={"Content-Type": "image/jpeg"})
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return  # the connection was closed under the sender
    assert answer.status_code == 413


def test_slow_sender(small: ScriptedService) -> None:
    """A byte now and then does not hold a request for ever; nothing reaches the engine."""
    image = make_file()
    small.engine.requests.clear()
    with connect(small) as made:
        made.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
            f"Content-Length: {len(image)}\r\n\r\n".encode()
        )
        stop = threading.Event()

        def drip() -> None:
            for number in range(len(image)):
                if stop.wait(0.1):
                    return
                try:
                    made.sendall(image[number : number + 1])
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        answer = read_until_closed(made)
        stop.set()
        thread.join()
    assert answer.startswith(b"HTTP/1.1 504")
    assert b"nothing was adapted" in answer
    assert not small.engine.requests


def test_client_that_goes_in_the_middle(small: ScriptedService) -> None:
    small.engine.requests.clear()
    with connect(small) as made:
        made.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\nabc".encode())
    deadline = time.monotonic() + TIMEOUT
    while small.server.service.bodies.held and time.monotonic() < deadline:
        time.sleep(0.01)
    assert small.server.service.bodies.held == 0
    assert not small.engine.requests
    assert small.post().status_code == 200


def test_bodies_take_a_bounded_memory(small: ScriptedService) -> None:
    reader = small.server.service.bodies
    reader.held += 32 * LIMIT
    try:
        answer = small.post()
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
    finally:
        reader.held -= 32 * LIMIT
    assert small.post().status_code == 200


def test_wrong_items_are_not_collected() -> None:
    """Three errors for each of three million items took eleven gigabytes and a minute and a half."""
    content = ('{"seq": 1, "labels": [' + ", ".join(["1"] * 500) + "]}").encode()
    with pytest.raises(ValidationError) as caught:
        LabelsBody.model_validate_json(content)
    assert caught.value.error_count() == 1
    with pytest.raises(HttpProblem, match=r"labels\.0 is wrong") as refused:
        read_json_body(LabelsBody, content)
    assert refused.value.status == 400


def test_labels_need_no_large_body(service: ScriptedService) -> None:
    answer = service.client.post("/v1/streams/cam/labels", content=b" " * (LABELS_BYTES + 1))
    assert answer.status_code == 413
