"""The routes under /v1 (but for the events), the probes, the metrics and the page."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, FailFast, Field

from lmr.service.app.errors import HttpProblem
from lmr.service.app.images import FORM, IMAGE_TYPES, MOST_FRAMES, PART, Frame, split_body
from lmr.service.app.request import (
    IMAGES_PATH,
    IdempotencyKey,
    StreamName,
    check_stream,
    read_json_body,
)
from lmr.service.app.service import find_service
from lmr.service.app.steps import ImageStep
from lmr.service.engine.requests import (
    REPLAYED,
    QueuedImage,
    RequestMode,
    ServiceAnswer,
)
from lmr.service.engine.status import StreamDetail, StreamPage, StreamStatus
from lmr.service.page import PAGE_FOLDER
from lmr.version import __version__

router = APIRouter()
STATE_TYPE, JSON = "application/octet-stream", "application/json"
LABELS_BYTES = 1_000_000  # of a body with labels
_FRESH = {"Cache-Control": "no-cache"}  # requested again each time, and sent only if it changed
_FILE = {"type": "string", "format": "binary"}
Result = TypeVar("Result")


async def _wait_for(future: Future[Result]) -> Result:
    """Return the result of a future of another thread; cancelling the task that waits leaves the future alone."""
    return await asyncio.shield(asyncio.wrap_future(future))


def _document_body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {kind: {"schema": one} for kind, one in content.items()}}}


# Images.


_FORM_SCHEMA = {
    "type": "object",
    "properties": {PART: {"type": "array", "items": _FILE, "minItems": 1}},
    "required": [PART],
}


@router.post(
    IMAGES_PATH,
    tags=["images"],
    response_model=ServiceAnswer,
    openapi_extra=_document_body({**dict.fromkeys(IMAGE_TYPES, _FILE), FORM: _FORM_SCHEMA}),
    summary="Adapt a stream on images and answer them",
)
async def post_images(
    request: Request,
    stream: StreamName,
    top: Annotated[int, Query(ge=1, le=1000, description="Classes to list for each image.")] = 5,
    mode: Annotated[RequestMode, Query(description="answer: use the present state and adapt nothing.")] = "adapt",
    compare: Annotated[bool, Query(description="Answer with the frozen model, too; costs one more forward.")] = False,
    key: IdempotencyKey = None,
) -> Response:
    """Adapt the stream on the images, as one step, and answer them.

    An image that cannot be read has an error in its position, and the others are served. Requests of a stream are
    served in the order in which they arrive. The state of no other stream changes, and no other stream changes the
    answer.
    """
    service = find_service(request)
    kind = request.headers.get("content-type", "")

    def read(body: bytes) -> ImageStep:
        return ImageStep(stream, split_body(kind, body, service.settings.max_images), top, mode, compare=compare)

    answer = await service.steps.run(request, stream, read, key)
    content = {key: value for key, value in vars(answer).items() if key != "replayed"} | {
        "answers": [one.format() for one in answer.answers],
        "timing": {name: round(value, 3) for name, value in answer.timing.items()},
        "model": service.model,
        "spec": service.engine.method.spec,
    }
    return JSONResponse(content, headers={REPLAYED: "true"} if answer.replayed else None)


# Streams.


class FramesPage(BaseModel):
    """The last frames of a stream, oldest first."""

    frames: list[Frame]


class LabelsBody(BaseModel):
    """The true labels of the images of request ``seq``, in their order; null where one is not known.

    Without ``teach`` they are for monitoring alone.
    """

    seq: int = Field(ge=1)
    labels: Annotated[list[str | None], FailFast()] = Field(min_length=1, max_length=1000)
    teach: bool = True


class LabelQueue(BaseModel):
    """Random images of a stream to label."""

    images: list[QueuedImage]


OperatorAction = Literal["reset", "rollback", "pause", "resume"]
streams = APIRouter(prefix="/v1/streams", tags=["streams"])


@streams.get("", summary="List streams with their health")
async def list_streams(
    request: Request,
    after: Annotated[str, Query(description="List the streams after this name.", max_length=128)] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Streams on a page.")] = 100,
) -> StreamPage:
    """Return streams in the order of their names, page by page: give ``next`` of a page as ``after`` of the next."""
    found = await run_in_threadpool(find_service(request).engine.list_streams, after and check_stream(after), limit)
    return StreamPage(found, found[-1].stream if len(found) == limit else None)


@streams.get("/{stream}", summary="Show a stream in detail")
async def get_stream(request: Request, stream: StreamName) -> StreamDetail:
    """Return its status, signals of the watch with their history, last answers, snapshots and events."""
    return await run_in_threadpool(find_service(request).engine.find, stream)


@streams.delete("/{stream}", summary="Delete a stream")
async def delete_stream(request: Request, stream: StreamName) -> StreamStatus:
    """Delete its state, its kept answers and its events, after the requests that arrived before this one."""
    service = find_service(request)
    status = await _wait_for(service.engine.act(stream, "delete"))
    if service.frames is not None:
        service.frames.drop(stream)
    return status


@streams.post("/{stream}:{action}", summary="Reset, roll back, pause or resume")
async def act_on_stream(request: Request, stream: StreamName, action: OperatorAction) -> StreamStatus:
    """Carry out an action of an operator, after the requests that arrived before this one.

    ``reset`` makes the stream the zero-shot model, as before its first image. ``rollback`` returns it to its newest
    good snapshot. ``pause`` answers with the present state and adapts no more, until ``resume``, which lets a resting
    stream adapt again, too. 409 if there is nothing to do.
    """
    return await _wait_for(find_service(request).engine.act(stream, action))


@streams.get("/{stream}/frames", summary="Show the last frames of a stream")
async def get_frames(
    request: Request,
    stream: StreamName,
    limit: Annotated[int, Query(ge=1, le=MOST_FRAMES, description="Frames, the last ones.")] = MOST_FRAMES,
) -> FramesPage:
    """Return small copies of the last frames, oldest first; 404 unless the service runs with --show-frames."""
    frames = find_service(request).frames
    if frames is None:
        raise HttpProblem(404, "no_frames", "This service keeps no frames; start it with --show-frames to see them.")
    return FramesPage(frames=frames.get(stream)[-limit:])


@streams.get(
    "/{stream}/state",
    response_class=Response,
    responses={200: {"content": {STATE_TYPE: {"schema": _FILE}}}},
    summary="Download the state of a stream",
)
async def get_state(request: Request, stream: StreamName) -> Response:
    """Return the file that ``method.save`` writes in Python: safetensors, with the method and the model."""
    content = await _wait_for(find_service(request).engine.read_state(stream))
    headers = {"Content-Disposition": f'attachment; filename="{stream}.state"'}
    return Response(content, media_type=STATE_TYPE, headers=headers)


@streams.put(
    "/{stream}/state",
    openapi_extra=_document_body({STATE_TYPE: _FILE}),
    summary="Upload the state of a stream",
)
async def put_state(request: Request, stream: StreamName) -> StreamStatus:
    """Continue the stream from a file of ``GET state`` or ``method.save``, of the same model, classes and method."""
    service = find_service(request)
    engine = service.engine
    async with service.bodies.read(request) as content:
        if not content:
            raise HttpProblem(400, "malformed", "Expected the content of a state file as the body, got an empty one.")
        return await _wait_for(engine.write_state(stream, content))


@streams.post(
    "/{stream}/labels",
    openapi_extra=_document_body({JSON: LabelsBody.model_json_schema()}),
    summary="Teach true labels",
)
async def post_labels(request: Request, stream: StreamName) -> StreamStatus:
    """Teach the stream true labels of images that it has answered, and count them in the running accuracy.

    Labels of the last 128 images, and of those that ``label-queue`` named, correct the answers to images like them, and
    give the estimated accuracy. Those of older requests, up to the last 200, are counted. A label is applied once;
    another label of an image replaces it. Choose the images at random, not those that look wrong: else the estimate is
    wrong. 422 for an unknown class, or for an image without an answer; then nothing changed. With ``teach`` false no
    answer changes.
    """
    service = find_service(request)
    async with service.bodies.read(request, LABELS_BYTES) as content:
        body = read_json_body(LabelsBody, content)
    return await _wait_for(service.engine.add_labels(stream, body.seq, body.labels, teach=body.teach))


@streams.get("/{stream}/label-queue", summary="Choose images to label")
async def get_label_queue(
    request: Request,
    stream: StreamName,
    n: Annotated[int, Query(ge=1, le=32, description="Images at most.")] = 10,
) -> LabelQueue:
    """Return random images among the last 128 that have no label yet; if there are frames, those with one first.

    A stream remembers the last 32 images that it named here, so that their labels may come later.
    """
    service = find_service(request)
    found = await run_in_threadpool(service.engine.list_unlabelled, stream)
    frames = [] if service.frames is None else service.frames.get(stream)
    copies = {(frame.seq, frame.image): frame.b64 for frame in frames}
    queue = [replace(one, b64=copies.get((one.seq, one.image))) for one in random.sample(found, len(found))]
    chosen = sorted(queue, key=lambda one: one.b64 is None)[:n]
    return LabelQueue(images=await _wait_for(service.engine.ask_labels(stream, chosen)) if chosen else [])


router.include_router(streams)


# The service.


class ModelCard(BaseModel):
    """The model, its classes, the method with all its values, and the limits of the service."""

    model: str
    classes: list[str]
    spec: str
    watch: str = Field(description='The settings of the watch, or "off".')
    facts: dict[str, str] = Field(description="About the model: format, architecture, resolution.")
    settings: dict[str, Any]
    version: str


@router.get("/v1/model", tags=["service"], summary="Show the model and its classes")
async def get_model(request: Request) -> ModelCard:
    """Return what is served, and the limits of the service."""
    service = find_service(request)
    return ModelCard(
        model=service.model,
        classes=service.engine.names,
        spec=service.engine.method.spec,
        watch=service.watch,
        facts=service.facts,
        settings=asdict(service.settings),
        version=__version__,
    )


@router.get("/healthz", tags=["service"], summary="Check that the process is alive")
async def get_health() -> dict[str, str]:
    """Return 200 as long as the process answers. For a liveness probe; needs no token."""
    return {"status": "alive"}


@router.get("/readyz", tags=["service"], summary="Check that requests are served")
async def get_readiness(request: Request) -> Response:
    """Return 200 when requests are served, otherwise 503; needs no token.

    "degraded" is 200 too: the store cannot be written, so that requests which adapt are refused.
    """
    now = find_service(request).engine.read_overview()
    body = {"status": now.state, **({"reason": now.reason} if now.reason else {})}
    return JSONResponse(body, 200 if now.state in ("ready", "degraded") else 503)


@router.get(
    "/metrics",
    tags=["service"],
    response_class=Response,
    summary="Metrics for Prometheus",
)
async def get_metrics(request: Request) -> Response:
    """Return requests, images, steps, queue, batches, commits, streams by health, rollbacks and the store."""
    return Response(find_service(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
async def get_page() -> FileResponse:
    """Return the live page."""
    return FileResponse(PAGE_FOLDER / "index.html", headers=_FRESH)


@router.get("/docs", include_in_schema=False)
async def get_docs() -> FileResponse:
    """Return the description of the API, which the page draws from /openapi.json."""
    return FileResponse(PAGE_FOLDER / "docs.html", headers=_FRESH)
