"""GET /v1/events: one frame of changes a second, for the page and for other observers.

No queue is kept for a client: each frame is read from the engine when the last one was taken. A slow client gets fewer
and larger frames, up to a limit, and one that was away continues after the frame it names in Last-Event-ID.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from lmr.service.app.errors import HttpProblem, document_errors
from lmr.service.app.request import read_number
from lmr.service.app.service import LiveService, find_service

router = APIRouter(tags=["service"])
CLIENTS = 64  # that may listen at once
FRAME = 1000  # events and streams in a frame, each
PAUSE = 1.0  # seconds between frames
_RETRY_MS = 1000
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="Continue after this frame; browsers send it by themselves.")
]


@router.get(
    "/v1/events",
    response_class=Response,
    responses={200: {"content": {EventSourceResponse.media_type: {}}}, **document_errors(401, 429)},
    summary="Follow the changes, once a second",
)
async def get_events(request: Request, last: LastEventId = None) -> Response:
    """Send server-sent events. Each frame is JSON: the overview, and events and streams that changed since the last.

    ``lost`` says that changes are missing before the frame, as in the first one: read ``/v1/streams`` again then. Such
    a frame has the last events. A stream that was deleted has the health "deleted".
    """
    service = find_service(request)
    if service.listeners >= CLIENTS:
        message = f"The limit of {CLIENTS} clients of the events is reached; try again later."
        raise HttpProblem(429, "too_many_listeners", message, {"Retry-After": "5"})
    return _EventStream(service, last)


class _EventStream(EventSourceResponse):
    """The answer to a listener, who counts from now on until it has ended, whether or not a frame was sent."""

    def __init__(self, service: LiveService, last: str | None) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_send_frames(service, last), headers=headers)
        self._service = service
        service.listeners += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.listeners -= 1


async def _send_frames(service: LiveService, last: str | None) -> AsyncIterator[bytes]:
    after = _find_start(service, last)
    while not service.stopping.is_set():
        frame, after = _make_frame(service, after)
        text = to_json(frame, inf_nan_mode="null", fallback=str).decode()  # JSON has no NaN
        yield format_sse_event(data_str=text, id=f"{service.run_id}-{after or 0}", retry=_RETRY_MS)
        await asyncio.sleep(PAUSE)


def _find_start(service: LiveService, last: str | None) -> int | None:
    """Return the change to continue after; None for a new client, and for one of an earlier run of the service."""
    run_id, _, number = (last or "").partition("-")
    change = read_number(number, -1)
    return change if run_id == service.run_id and change >= 0 else None


def _make_frame(service: LiveService, after: int | None) -> tuple[dict[str, Any], int | None]:
    now = service.read_overview()
    frame: dict[str, Any] = {"run": service.run_id, "time": time.time(), "overview": now, "lost": True}
    frame |= {"events": [], "streams": []}
    if now.state == "loading":
        return frame, None
    if after is not None:
        changes = service.engine.read_changes(after, FRAME)
        if not changes.lost:
            return frame | {"lost": False, "events": changes.events, "streams": changes.streams}, changes.upto
    upto = service.note_events()  # the recent events are complete up to there; the next frame continues after it
    return frame | {"events": list(service.recent)}, upto
