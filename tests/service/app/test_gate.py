"""The gate: tokens, hosts, protection of the page, request ids, and refusals before the body."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from lmr.service.engine.requests import QueueFull
from plain_http import read_answer
from service_maker import TIMEOUT, ScriptedService, make_file, serve_scripted

TOKEN = "a-token-of-many-letters"
IMAGES = "/v1/streams/cam/images"
GUARDED = ["/v1/streams", "/metrics"]
OPEN = ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/assets/live.js"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[ScriptedService]:
    with serve_scripted(token=TOKEN) as made:
        yield made


@pytest.mark.parametrize("path", GUARDED)
def test_token_is_needed(guarded: ScriptedService, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": "Basic " + TOKEN},
    ):
        answer = guarded.client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in answer.text


def test_token_opens(guarded: ScriptedService) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.client.get("/v1/streams", headers=headers).status_code == 200
    assert guarded.client.get("/metrics", headers=headers).status_code == 200
    assert guarded.post(headers=headers).status_code == 200
    assert guarded.post().status_code == 401
    assert len(guarded.engine.requests) == 1


@pytest.mark.parametrize("path", OPEN)
def test_page_and_probes_need_none(guarded: ScriptedService, path: str) -> None:
    assert guarded.client.get(path).status_code == 200


def test_body_is_not_read_without_token(guarded: ScriptedService) -> None:
    """The refusal comes although the body never ends."""

    def endless() -> Iterator[bytes]:
        yield make_file()[:10]
        while True:
            yield b"0" * 1000

    headers = {"Content-Type": "image/jpeg"}
    try:
        answer = guarded.client.post(IMAGES, content=endless(), headers=headers)
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return  # the connection was closed under the sender
    assert answer.status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "192.168.0.7:8080", ""])
def test_without_token_only_requests_to_this_machine(service: ScriptedService, host: str) -> None:
    """A name that resolves to 127.0.0.1 would let any web page use the service."""
    answer = service.client.get("/v1/streams", headers={"Host": host})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "foreign_host"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:x"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "http://localhost:9", "Host": "localhost:8080"},
        {"Origin": "https://localhost:8080", "Host": "localhost:8080"},
    ],
)
def test_without_token_no_page_of_another_site(service: ScriptedService, headers: dict[str, str]) -> None:
    answer = service.client.post("/v1/streams/cam:reset", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "foreign_origin"
    assert not service.engine.acts


def test_own_page_may(service: ScriptedService) -> None:
    assert service.client.get("/v1/streams", headers={"Origin": service.server.url}).status_code == 200
    for origin, host in (("http://LOCALHOST", "localhost:80"), ("http://[::1]:81", "[::1]:81")):
        assert service.client.get("/v1/streams", headers={"Origin": origin, "Host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1/streams", "/v1/nothing", "/assets/live.css"])
def test_answers_protect_the_page(service: ScriptedService, path: str) -> None:
    headers = service.client.get(path).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"]
    assert "server" not in headers


def test_request_id_is_given_back(service: ScriptedService) -> None:
    assert service.client.get("/healthz", headers={"X-Request-Id": "order-66"}).headers["X-Request-Id"] == "order-66"
    made = [
        service.client.get("/healthz", headers={"X-Request-Id": odd}).headers["X-Request-Id"] for odd in ("", "a b")
    ]
    assert all(len(one) == 32 for one in made)
    assert made[0] != made[1]


@pytest.fixture
def full() -> Iterator[ScriptedService]:
    with serve_scripted() as made:
        made.engine.full = QueueFull("The service has as many requests waiting as it may.", 2.5)
        yield made


def write_head(length: int) -> bytes:
    return (
        f"POST /v1/streams/cam/images HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def test_refused_before_the_body_and_the_connection_serves_again(full: ScriptedService) -> None:
    host, port = full.server.url.removeprefix("http://").split(":")
    image = make_file()
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as made:
        made.sendall(write_head(len(image)))
        refused = read_answer(made)  # the body has not been sent
        made.sendall(image)
        full.engine.full = None
        made.sendall(write_head(len(image)) + image)
        served = read_answer(made)
    assert (refused.status, refused.headers["Retry-After"]) == (429, "3")
    assert b'"queue_full"' in refused.body
    assert served.status == 200
    assert len(full.engine.requests) == 1
