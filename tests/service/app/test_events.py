"""Events: a frame a second, bounded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response
from starlette.types import Message

from lmr.service.app import events
from lmr.service.app.errors import HttpProblem
from lmr.service.engine.status import Overview, ServiceEvent
from scripted_engine import make_status
from service_maker import ScriptedService


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE", 0.02)


def read_frames(service: ScriptedService) -> Iterator[dict[str, Any]]:
    with service.client.stream("GET", "/v1/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def change(service: ScriptedService, number: int, stream: str, **values: Any) -> None:
    service.engine.statuses[stream] = make_status(stream, change=number, **values)
    service.engine.overview = Overview("ready", change=number)


def test_later_frames_have_what_changed(service: ScriptedService) -> None:
    change(service, 10, "cam-1")
    frames = read_frames(service)
    next(frames)
    change(service, 11, "cam-2", health="suspected")
    service.engine.events.append(ServiceEvent(11, time.time(), "cam-2", "health", "ok", "suspected", "Suspected."))
    for frame in frames:
        if frame["streams"]:
            break
    assert frame["lost"] is False
    assert [status["stream"] for status in frame["streams"]] == ["cam-2"]
    assert [event["message"] for event in frame["events"]] == ["Suspected."]


def test_first_frame_has_events_of_this_moment(service: ScriptedService) -> None:
    """They are counted and logged once a second; a client that comes in between misses none."""
    messages = [f"Event {number}." for number in range(5)]
    for number, one in enumerate(messages, 40):
        service.engine.events.append(ServiceEvent(number, time.time(), "cam", "health", "ok", "suspected", one))
        service.engine.overview = Overview("ready", change=number)
        frame = next(read_frames(service))
        assert [event["message"] for event in frame["events"]][-1] == one


def test_numbers_that_json_lacks_are_null(service: ScriptedService) -> None:
    change(service, 30, "cam")
    frames = read_frames(service)
    next(frames)
    odd = {"entropy": float("nan"), "many": [float("inf"), 1.5]}
    service.engine.events.append(ServiceEvent(31, time.time(), "cam", "health", "ok", "suspected", "Odd.", odd))
    service.engine.overview = Overview("ready", change=31)
    for frame in frames:
        if frame["events"]:
            break
    assert frame["events"][0]["signals"] == {"entropy": None, "many": [None, 1.5]}


def test_listeners_of_a_rush_are_counted_before_their_first_frame(service: ScriptedService) -> None:
    """All of them arrive before any is sent something."""

    async def rush() -> list[int]:
        app = service.server.service
        request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(service=app)))
        codes, before = [], app.listeners
        answers: list[Response] = []
        for _ in range(events.CLIENTS + 5 - before):
            try:
                answers.append(await events.get_events(request))  # type: ignore[arg-type]
                codes.append(200)
            except HttpProblem as problem:
                codes.append(problem.status)
        for answer in answers:  # whose clients have gone
            with suppress(OSError):
                await answer({"type": "http"}, _receive, _fail)
        assert app.listeners == before
        return codes

    codes = asyncio.run(rush())
    assert codes[-5:] == [429] * 5
    assert set(codes[:-5]) == {200}


async def _receive() -> Message:
    return {"type": "http.disconnect"}


async def _fail(message: Message) -> None:
    raise OSError("the connection is closed")


def test_client_that_goes_is_forgotten(service: ScriptedService) -> None:
    frames = read_frames(service)
    next(frames)
    assert service.server.service.listeners >= 1
    frames.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while service.server.service.listeners and time.monotonic() < deadline:
        time.sleep(0.02)
    assert service.server.service.listeners == 0
