"""GET /v1/events: what changed, one frame a second, for the page and for anybody else who watches.

A client holds no queue: each frame is read from the engine when the last one was taken. A client that is slow gets
fewer and larger frames, up to a limit, and one that was away goes on after the frame it names in Last-Event-ID.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event

from lmr.service.app.http_errors import HttpProblem, pick_errors
from lmr.service.app.intake.request_options import read_number
from lmr.service.app.live_service import LiveService, find_service
from lmr.service.engine.stream_types import ServiceEvent, StreamStatus

router = APIRouter(tags=["service"])
CLIENTS = 64  # that may listen at once
FRAME = 1000  # events and streams in a frame, each
PAUSE = 1.0  # seconds between frames
_RETRY_MS = 1000
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="Go on after this frame; browsers send it by themselves.")
]


@router.get(
    "/v1/events",
    response_class=Response,
    responses={200: {"content": {EventSourceResponse.media_type: {}}}, **pick_errors(401, 429)},
    summary="What changes, once a second",
)
async def get_events(request: Request, last: LastEventId = None) -> Response:
    """Server-sent events. Each frame is JSON: the overview, the events and the streams that changed since the last one.

    ``lost`` says that changes are missing before the frame, as in the first one: read ``/v1/streams`` anew then. Such
    a frame has the last events. A stream that was deleted has the health "deleted".
    """
    service = find_service(request)
    if service.listeners >= CLIENTS:
        words = f"{CLIENTS} clients listen already, as many as may; try again later."
        raise HttpProblem(429, "too_many_listeners", words, {"Retry-After": "5"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventSourceResponse(_send_frames(service, last), headers=headers)


async def _send_frames(service: LiveService, last: str | None) -> AsyncIterator[bytes]:
    service.listeners += 1
    try:
        after = _find_place(service, last)
        while not service.stopping.is_set():
            frame, after = _make_frame(service, after)
            text = json.dumps(frame, default=str, allow_nan=False)
            yield format_sse_event(data_str=text, id=f"{service.run_id}-{after or 0}", retry=_RETRY_MS)
            await asyncio.sleep(PAUSE)
    finally:
        service.listeners -= 1


def _find_place(service: LiveService, last: str | None) -> int | None:
    """The change after which to go on; None for a new client, and for one of an earlier run of the service."""
    run_id, _, number = (last or "").partition("-")
    place = read_number(number, -1)
    return place if run_id == service.run_id and place >= 0 else None


def _make_frame(service: LiveService, after: int | None) -> tuple[dict[str, Any], int | None]:
    now = service.look()
    frame: dict[str, Any] = {"run": service.run_id, "time": time.time(), "overview": asdict(now)}
    if now.state == "loading":
        return frame | _describe(True, [], []), None
    if after is not None:
        changes = service.engine.read_changes(after, FRAME)
        if not changes.lost:
            return frame | _describe(False, changes.events, changes.streams), changes.upto
    upto = service.note_events()  # the recent events are complete up to there; the next frame goes on after it
    return frame | _describe(True, service.recent, []), upto


def _describe(lost: bool, events: Iterable[ServiceEvent], streams: Iterable[StreamStatus]) -> dict[str, Any]:
    return {
        "lost": lost,
        "events": [make_plain(asdict(event)) for event in events],
        "streams": [asdict(status) for status in streams],
    }


def make_plain(value: Any) -> Any:
    """The value with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: make_plain(item) for key, item in value.items()}
    return [make_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
