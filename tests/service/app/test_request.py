"""Bodies while they arrive: too large, too slow, cut off, too many at once; and bodies in JSON."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from lmr.service.app.errors import HttpProblem
from lmr.service.app.images import ImagesBody
from lmr.service.app.request import MOST_CLASSES, read_json_body
from lmr.service.app.routes import ClassesBody, LabelsBody
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


def test_shorter_time_of_a_request(service: ScriptedService) -> None:
    """X-Timeout-Ms is the deadline of the engine too."""
    before = service.engine.clock()
    assert service.post(headers={"X-Timeout-Ms": "5000"}).status_code == 200
    assert service.post(headers={"X-Timeout-Ms": "900000"}).status_code == 200
    short, long = (request.deadline for request in service.engine.requests)
    assert short is not None
    assert long is not None
    assert 5 <= short - before < 25 < long - before <= 30 + (service.engine.clock() - before)


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


@pytest.mark.parametrize(
    ("kind", "body", "item"),
    [
        (ImagesBody, '{"images": [ITEMS]}', "{}"),
        (ImagesBody, '{"images": [ITEMS]}', "1"),
        (LabelsBody, '{"seq": 1, "labels": [ITEMS]}', "1"),
    ],
    ids=["no b64", "no image", "no label"],
)
def test_wrong_items_are_not_collected(kind: type[BaseModel], body: str, item: str) -> None:
    """Three errors for each of three million items took eleven gigabytes and a minute and a half."""
    content = body.replace("ITEMS", ", ".join([item] * 500)).encode()
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(content)
    assert caught.value.error_count() <= 3  # those of one item
    with pytest.raises(HttpProblem, match=r"Expected a body, but .*\.0.* is wrong: ") as refused:
        read_json_body(kind, content, "a body")
    assert refused.value.status == 400


def test_lists_are_bounded() -> None:
    many = b'{"images": [' + b", ".join([b'{"b64": ""}'] * 9_000) + b"]}"
    for body in (many, b'{"images": ["' + b'", "' * 200_000 + b'"]}', b"[" * 30_000):
        with pytest.raises(HttpProblem, match="more than 25,000 values"):
            read_json_body(ImagesBody, body, "a body")


def test_a_list_of_classes_is_refused_before_it_is_read_whatever_max_body_says() -> None:
    with serve_scripted(ServiceSettings(max_body=10**9)) as made, connect(made) as connection:
        head = "PUT /v1/model/classes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n"
        connection.sendall(head.encode())
        answer = read_until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"12,000,000 bytes" in answer


def test_what_is_inside_of_texts_is_not_counted() -> None:
    names = [f'{number}, of {{a: "b"}}, [c\\' for number in range(MOST_CLASSES)]
    assert read_json_body(ClassesBody, json.dumps({"classes": names}).encode(), "a body").classes == names
    with pytest.raises(HttpProblem, match="at most 20000 items"):
        read_json_body(ClassesBody, json.dumps({"classes": [*names, "d"]}).encode(), "a body")


@pytest.mark.parametrize("value", ["0", "-5", "nan", "inf", "soon"])
def test_odd_times(service: ScriptedService, value: str) -> None:
    assert service.post(headers={"X-Timeout-Ms": value}).status_code == 400
    assert not service.engine.requests
