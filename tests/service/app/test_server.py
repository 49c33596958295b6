"""The server on its socket: addresses, the end, silent connections, heads and trailers that never end."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from lmr.core.errors import LmrError
from lmr.service.app import events
from lmr.service.app import server as module
from lmr.service.app.app import make_app
from lmr.service.app.server import MOST_BYTES, Server, bind
from plain_http import read_until_closed
from service_maker import TIMEOUT, ScriptedService, make_file, serve_scripted


def test_taken_port_is_one_sentence(service: ScriptedService) -> None:
    port = int(service.server.url.rpartition(":")[2])
    with pytest.raises(LmrError, match=rf"Cannot listen on 127\.0\.0\.1 port {port}: .*Choose another"):
        bind("127.0.0.1", port)


def test_ipv6() -> None:
    try:
        bound = bind("::1", 0)
    except LmrError:
        pytest.skip("This machine has no IPv6 loopback; enable it to run this test.")
    with serve_scripted() as other, Server(make_app(other.server.service), bound) as made:
        assert made.url.startswith("http://[::1]:")
        assert httpx.get(f"{made.url}/healthz", timeout=TIMEOUT).status_code == 200


def test_requests_that_wait_are_answered_at_the_end() -> None:
    with serve_scripted() as made, ThreadPoolExecutor() as pool:
        made.engine.hold = True
        waiting = pool.submit(made.post)
        while not made.engine.held:
            time.sleep(0.01)
        ending = pool.submit(made.server.stop)
        while not made.server._uvicorn.should_exit:
            time.sleep(0.01)
        made.engine.held[0].set_result(made.engine.answer(made.engine.requests[0]))
        assert waiting.result(TIMEOUT).status_code == 200
        ending.result(TIMEOUT)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{made.server.url}/healthz")


def test_events_end_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE", 0.05)
    with serve_scripted() as made, made.client.stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        threading.Thread(target=made.server.stop).start()
        assert list(lines)[-1] == ""  # it ends after a whole frame, instead of waiting for ever


def test_answer_that_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.2)
    monkeypatch.setattr(module, "_TICKS", 1)
    content: Future[bytes] = Future()
    content.set_result(bytes(50_000_000))  # more than sockets hold
    with serve_scripted() as made:
        monkeypatch.setattr(made.engine, "read_state", lambda stream: content)
        connections = made.server._uvicorn.server_state.connections
        host, port = made.server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT) as client:
            client.sendall(b"GET /v1/streams/cam/state HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
            deadline = time.monotonic() + TIMEOUT
            while connections and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not connections


def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HEAD_SECONDS", 0.2)
    monkeypatch.setattr(module, "_TICKS", 1)
    with serve_scripted() as made:
        host, port = made.server.url.removeprefix("http://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=TIMEOUT) as silent,
            socket.create_connection((host, int(port)), timeout=TIMEOUT) as halting,
        ):
            halting.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
            assert silent.recv(1) == b""
            assert halting.recv(1) == b""
        assert made.client.get("/healthz").status_code == 200


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


def test_large_bodies_count_for_nothing(service: ScriptedService) -> None:
    """Several bodies on one connection, each larger than the bound of a head."""
    content = service.post().request.content
    assert [service.post(content=content + bytes(3 * MOST_BYTES)).status_code for _ in range(3)] == [200] * 3


def test_pipelining_ends_the_connection_and_drops_what_waits(service: ScriptedService) -> None:
    """Nothing adapts for a client that has gone, and no number of requests is queued."""
    service.engine.hold = True
    image = make_file()
    first = (
        f"POST /v1/streams/cam/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        f"Content-Length: {len(image)}\r\n\r\n"
    ).encode()
    with connect(service) as made:
        made.sendall(first + image)
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
