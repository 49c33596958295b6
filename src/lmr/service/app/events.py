"""GET /v1/events: one frame of changes a second, for the page and for other observers.

No queue is kept for a client: each frame is read from the engine when the last one was taken. A slow client gets fewer
and larger frames, up to a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from lmr.service.app.errors import HttpProblem
from lmr.service.app.service import LiveService, find_service

router = APIRouter(tags=["service"])
CLIENTS = 64  # that may listen at once
FRAME = 1000  # events and streams in a frame, each
PAUSE = 1.0  # seconds between frames


@router.get(
    "/v1/events",
    response_class=Response,
    responses={200: {"content": {EventSourceResponse.media_type: {}}}},
    summary="Follow the changes, once a second",
)
async def get_events(request: Request) -> Response:
    """Send server-sent events. Each frame is JSON: the overview, and events and streams that changed since the last.

    ``lost`` says that changes are missing before the frame, as in the first one: read ``/v1/streams`` again then. Such
    a frame has the last events. A stream that was deleted has the health "deleted".
    """
    service = find_service(request)
    if service.listeners >= CLIENTS:
        message = f"The limit of {CLIENTS} clients of the events is reached; try again later."
        raise HttpProblem(429, "too_many_listeners", message, {"Retry-After": "5"})
    return _EventStream(service)


class _EventStream(EventSourceResponse):
    """The answer to a listener, who counts from now on until it has ended, whether or not a frame was sent."""

    def __init__(self, service: LiveService) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_send_frames(service), headers=headers)
        self._service = service
        service.listeners += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.listeners -= 1


async def _send_frames(service: LiveService) -> AsyncIterator[bytes]:
    after: int | None = None
    while not service.stopping.is_set():
        frame, after = _make_frame(service, after)
        text = to_json(frame, inf_nan_mode="null", fallback=str).decode()  # JSON has no NaN
        yield format_sse_event(data_str=text)
        await asyncio.sleep(PAUSE)


def _make_frame(service: LiveService, after: int | None) -> tuple[dict[str, Any], int]:
    frame: dict[str, Any] = {"time": time.time(), "overview": service.engine.read_overview(), "lost": True}
    frame |= {"events": [], "streams": []}
    if after is not None:
        changes = service.engine.read_changes(after, FRAME)
        if not changes.lost:
            return frame | {"lost": False, "events": changes.events, "streams": changes.streams}, changes.upto
    upto = service.note_events()  # the recent events are complete up to there; the next frame continues after it
    return frame | {"events": list(service.recent)}, upto
