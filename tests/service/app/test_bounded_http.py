"""Heads and trailers that never end, and requests that do not wait for the answer before them."""

from __future__ import annotations

import json
import socket
import time

import pytest

from lmr.service.app.bounded_http import MOST_BYTES
from plain_http import read_answer, read_until_closed
from service_maker import TIMEOUT, ScriptedService, make_file

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = (
    b"POST /v1/streams/cam/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n"
)


def connect(service: ScriptedService) -> socket.socket:
    host, port = service.server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT)


def send_until_closed(made: socket.socket, part: bytes, most: int) -> tuple[int, bytes]:
    """How many bytes were taken before the service closed the connection, and what it said."""
    sent, answer = 0, b""
    try:
        while sent < most:
            made.sendall(part)
            sent += len(part)
        while found := made.recv(65536):
            answer += found
    except ConnectionError:
        pass
    return sent, answer


@pytest.mark.parametrize("begin", [HEAD, CHUNKED], ids=["head", "trailers"])
@pytest.mark.parametrize("part", [b"X-Many: " + b"a" * 1000 + b"\r\n", b"a" * 1000], ids=["many", "one"])
def test_endless_head_is_cut_off(service: ScriptedService, begin: bytes, part: bytes) -> None:
    first = b"X-One: " if not part.endswith(b"\r\n") else b""
    with connect(service) as made:
        made.sendall(begin + first)
        sent, answer = send_until_closed(made, part, 100 * MOST_BYTES)
    assert sent < 100 * MOST_BYTES
    assert not answer or b"HTTP/1.1 4" in answer
    assert service.client.get("/healthz").status_code == 200


def test_large_head_within_the_bound_is_served(service: ScriptedService) -> None:
    headers = {f"X-{number}": "a" * 1000 for number in range(MOST_BYTES // 1000 - 5)}
    assert service.client.get("/healthz", headers=headers).status_code == 200


def test_large_bodies_count_for_nothing(service: ScriptedService) -> None:
    """Several bodies on one connection, each larger than the bound of a head."""
    content = service.post().request.content
    assert [service.post(content=content + bytes(3 * MOST_BYTES)).status_code for _ in range(3)] == [200] * 3


def test_pipelining_ends_the_connection_and_drops_what_waits(service: ScriptedService) -> None:
    """Nothing adapts for a client that has gone, and no number of requests is queued."""
    service.engine.hold = True
    picture = make_file()
    first = (
        f"POST /v1/streams/cam/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        f"Content-Length: {len(picture)}\r\n\r\n"
    ).encode()
    with connect(service) as made:
        made.sendall(first + picture)
        end = time.monotonic() + TIMEOUT
        while not service.engine.held and time.monotonic() < end:
            time.sleep(0.01)
        made.sendall(100 * (HEAD + b"Content-Length: 3\r\n\r\nabc"))
        assert read_until_closed(made) == b""
    while not service.engine.dropped and time.monotonic() < end:
        time.sleep(0.01)
    assert service.engine.dropped == service.engine.held
    assert len(service.engine.requests[0].images) == 1
    assert service.client.get("/healthz").status_code == 200


def test_requests_one_after_the_other_share_a_connection(service: ScriptedService) -> None:
    with connect(service) as made:
        for _ in range(3):
            made.sendall(HEAD + b"\r\n")
            answer = read_answer(made)
            assert (answer.status, json.loads(answer.body)) == (200, {"status": "alive"})
