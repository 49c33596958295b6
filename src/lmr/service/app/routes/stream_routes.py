"""Streams: list them, look at one, act on one, its state as a file, and true labels for monitoring."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, FailFast, Field

from lmr.service.app.http_errors import HttpProblem, pick_errors
from lmr.service.app.intake.json_bodies import read_json_body
from lmr.service.app.intake.request_options import StreamName, check_stream
from lmr.service.app.intake.waiting import wait_for
from lmr.service.app.live_service import find_service
from lmr.service.engine.stream_types import StreamAction, StreamDetail, StreamStatus

router = APIRouter(tags=["streams"])
STATE_TYPE = "application/octet-stream"
_IN_TURN = (400, 401, 404, 409, 429, 503, 504)  # of what waits for its turn among the requests of its stream


class StreamPage(BaseModel):
    """Some streams in the order of their names; ``next`` is the ``after`` of the next page, None at the end."""

    streams: list[StreamStatus]
    next: str | None


class Frame(BaseModel):
    """A small copy of an image, WebP in base64, and its label."""

    seq: int
    label: str
    b64: str


class FramesPage(BaseModel):
    """The last frames of a stream, oldest first."""

    frames: list[Frame]


class LabelsBody(BaseModel):
    """The true labels of the images of request ``seq``, in their order; null where one is not known."""

    seq: int = Field(ge=1)
    labels: Annotated[list[str | None], FailFast()] = Field(min_length=1, max_length=1000)


@router.get("/v1/streams", responses=pick_errors(400, 401, 503), summary="List streams with their health")
async def list_streams(
    request: Request,
    after: Annotated[str, Query(description="List the streams after this name.", max_length=128)] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Streams on a page.")] = 100,
) -> StreamPage:
    """All streams in the order of their names, page by page: give ``next`` of a page as ``after`` of the next one."""
    found = await wait_for(find_service(request).engine.list_streams(after, limit))
    return StreamPage(streams=found, next=found[-1].stream if len(found) == limit else None)


@router.get("/v1/streams/{stream}", responses=pick_errors(400, 401, 404, 503), summary="Look at a stream closely")
async def get_stream(request: Request, stream: StreamName) -> StreamDetail:
    """Its status, the signals of the watch with their recent past, its last answers, its snapshots and its events."""
    return await wait_for(find_service(request).engine.find(check_stream(stream)))


@router.delete("/v1/streams/{stream}", responses=pick_errors(*_IN_TURN), summary="Delete a stream")
async def delete_stream(request: Request, stream: StreamName) -> StreamStatus:
    """Its state, its kept answers and its events are deleted, after the requests that arrived before this one."""
    service = find_service(request)
    status = await _act(request, stream, "delete")
    if service.frames is not None:
        service.frames.drop(stream)
    return status


@router.post("/v1/streams/{stream}:reset", responses=pick_errors(*_IN_TURN), summary="Forget everything")
async def reset_stream(request: Request, stream: StreamName) -> StreamStatus:
    """The stream is as it was before its first image: the zero-shot model."""
    return await _act(request, stream, "reset")


@router.post("/v1/streams/{stream}:rollback", responses=pick_errors(*_IN_TURN), summary="Roll back")
async def roll_back_stream(request: Request, stream: StreamName) -> StreamStatus:
    """The stream goes back to its newest good snapshot; 409 if there is none."""
    return await _act(request, stream, "rollback")


@router.post("/v1/streams/{stream}:freeze", responses=pick_errors(*_IN_TURN), summary="Stop adapting")
async def freeze_stream(request: Request, stream: StreamName) -> StreamStatus:
    """The stream answers with its present state and adapts no more, until it is resumed."""
    return await _act(request, stream, "freeze")


@router.post("/v1/streams/{stream}:resume", responses=pick_errors(*_IN_TURN), summary="Adapt again")
async def resume_stream(request: Request, stream: StreamName) -> StreamStatus:
    """A frozen, resting or quarantined stream adapts again."""
    return await _act(request, stream, "resume")


@router.post("/v1/streams/{stream}:undo", responses=pick_errors(*_IN_TURN), summary="Undo the last change")
async def undo_stream(request: Request, stream: StreamName) -> StreamStatus:
    """The last rollback or reset, by the watch or by an operator, is undone; 409 if there is none."""
    return await _act(request, stream, "undo")


@router.get("/v1/streams/{stream}/frames", responses=pick_errors(400, 401, 404), summary="The last frames of a stream")
async def get_frames(request: Request, stream: StreamName) -> FramesPage:
    """Small copies of the last frames, oldest first; 404 unless the service was started with --show-frames."""
    frames = find_service(request).frames
    check_stream(stream)
    if frames is None:
        raise HttpProblem(404, "no_frames", "This service keeps no frames; start it with --show-frames to see them.")
    found = frames.list_frames(stream)
    return FramesPage(
        frames=[Frame(seq=one.seq, label=one.label, b64=base64.b64encode(one.content).decode()) for one in found]
    )


async def _act(request: Request, stream: str, action: StreamAction) -> StreamStatus:
    return await wait_for(find_service(request).engine.act(check_stream(stream), action))


@router.get(
    "/v1/streams/{stream}/state",
    response_class=Response,
    responses={
        200: {"content": {STATE_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        **pick_errors(*_IN_TURN),
    },
    summary="The state of a stream, as a file",
)
async def get_state(request: Request, stream: StreamName) -> Response:
    """The file that ``method.save`` writes in Python: safetensors, with the method and the model it belongs to."""
    content = await wait_for(find_service(request).engine.read_state(check_stream(stream)))
    headers = {"Content-Disposition": f'attachment; filename="{stream}.state"'}
    return Response(content, media_type=STATE_TYPE, headers=headers)


@router.put(
    "/v1/streams/{stream}/state",
    responses=pick_errors(*_IN_TURN, 413, 422),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {STATE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
    summary="Give a stream a state",
)
async def put_state(request: Request, stream: StreamName) -> StreamStatus:
    """The stream goes on from a file of ``GET state`` or of ``method.save``, of the same model, classes and method."""
    service = find_service(request)
    engine = service.engine
    check_stream(stream)
    async with service.bodies.read(request, service.settings.timeout_ms / 1000) as content:
        if not content:
            raise HttpProblem(400, "malformed", "Expected the content of a state file as the body, got an empty one.")
        return await wait_for(engine.write_state(stream, content))


@router.post(
    "/v1/streams/{stream}/labels",
    responses=pick_errors(*_IN_TURN, 413, 422),
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": LabelsBody.model_json_schema()}}},
    },
    summary="Tell true labels",
)
async def post_labels(request: Request, stream: StreamName) -> StreamStatus:
    """For monitoring alone: the running accuracy appears, and not a bit of the stream's state changes."""
    service = find_service(request)
    check_stream(stream)
    async with service.bodies.read(request, service.settings.timeout_ms / 1000) as content:
        body = read_json_body(LabelsBody, content, '{"seq": ..., "labels": [...]}')
    return await wait_for(service.engine.add_labels(stream, body.seq, body.labels))
