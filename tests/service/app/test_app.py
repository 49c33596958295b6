"""The whole service on a socket: a real engine, a real store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

import lmr
from lmr.service.app.app import make_app
from lmr.service.app.server import Server
from lmr.service.app.service import LiveService
from lmr.service.engine.engine import Engine
from lmr.service.engine.packing import describe_identity
from lmr.service.settings import ServiceSettings
from lmr.service.store.sqlite_store import SqliteStore
from pocket import load_pocket
from service_maker import NAMES, TIMEOUT, make_file

JPEG = {"Content-Type": "image/jpeg"}
FILES = [make_file(colour=colour) for colour in ("red", "blue", "green", "white")]


def make_method(streams: int) -> lmr.Method:
    return lmr.create("tent(lr=0.01)", load_pocket().classifier(NAMES), streams=streams)


@contextmanager
def serve(path: Path) -> Iterator[httpx.Client]:
    settings = ServiceSettings(resident=2)
    method = lmr.Watched(make_method(settings.resident))
    engine = Engine(method, NAMES, settings, SqliteStore(path, describe_identity(method)))
    engine.start()
    try:
        app = make_app(LiveService(engine, load_pocket().preprocess, "pocket"))
        with Server(app) as server, httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
            yield client
    finally:
        engine.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states") / "streams.sqlite"


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[httpx.Client]:
    with serve(path) as made:
        yield made


def post(client: httpx.Client, stream: str, file: bytes, key: str | None = None) -> httpx.Response:
    headers = {"Content-Type": "image/jpeg"} | ({"Idempotency-Key": key} if key else {})
    return client.post(f"/v1/streams/{stream}/images", content=file, headers=headers)


def read_state(client: httpx.Client, stream: str) -> bytes:
    answer = client.get(f"/v1/streams/{stream}/state")
    assert answer.status_code == 200
    return answer.content


def test_answers_are_those_of_the_library(client: httpx.Client) -> None:
    """Each stream alone gives what it gets beside others; there are more streams than rows of the method."""
    streams = ("one", "two", "three")
    found = {stream: [] for stream in streams}  # type: ignore[var-annotated]
    for number, file in enumerate(FILES):
        for stream in streams:
            answer = post(client, stream, file if stream != "two" else FILES[-1 - number]).json()
            assert answer["seq"] == number + 1
            assert answer["saved"] is True
            found[stream].append(dict(answer["answers"][0]["top"]))
    preprocess = load_pocket().preprocess
    for stream in streams:
        alone = make_method(1)
        for file, shares in zip(FILES if stream != "two" else FILES[::-1], found[stream], strict=True):
            expected = alone.step(preprocess([file])).probabilities[0]
            given = torch.tensor([shares[name] for name in NAMES])
            torch.testing.assert_close(given, expected, atol=1e-4, rtol=0)


def test_labels_teach_unless_they_are_for_monitoring(client: httpx.Client) -> None:
    first = post(client, "labelled", FILES[0]).json()["answers"][0]
    before, body = read_state(client, "labelled"), {"seq": 1, "labels": [first["label"]]}
    status = client.post("/v1/streams/labelled/labels", json={**body, "teach": False}).json()
    assert (status["accuracy"], status["labelled"], status["taught"]) == (1.0, 1, 0)
    assert read_state(client, "labelled") == before
    status = client.post("/v1/streams/labelled/labels", json=body).json()
    assert (status["labelled"], status["taught"], status["estimated_labels"]) == (1, 1, 1)
    assert len(status["estimated_interval"]) == 2
    again = client.get("/v1/streams/labelled").json()["status"]
    assert again["estimated_accuracy"] == status["estimated_accuracy"]
    second = client.post("/v1/streams/labelled/images?mode=answer", content=FILES[0], headers=JPEG).json()
    assert second["answers"][0]["probability"] > first["probability"]
