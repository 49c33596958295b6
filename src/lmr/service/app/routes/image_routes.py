"""POST images of a stream: adapt on them and answer them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from lmr.service.app.http_errors import pick_errors
from lmr.service.app.images_answer import ImagesAnswer, describe_answer
from lmr.service.app.intake.early_refusal import IMAGES_PATH
from lmr.service.app.intake.image_bodies import FORM, IMAGE_TYPES, JSON, PART, ImagesBody, split_body
from lmr.service.app.intake.image_steps import ImageStep, run_step
from lmr.service.app.intake.request_options import IdempotencyKey, StreamName, TimeoutMs, check_stream
from lmr.service.app.live_service import find_service
from lmr.service.engine.step_types import RequestMode

REPLAYED = "Idempotency-Replayed"  # on an answer that was kept from an earlier request
router = APIRouter(tags=["images"])
_FILE = {"type": "string", "format": "binary"}
_BODY = {
    "required": True,
    "content": {
        **{kind: {"schema": _FILE} for kind in IMAGE_TYPES},
        FORM: {
            "schema": {
                "type": "object",
                "properties": {PART: {"type": "array", "items": _FILE, "minItems": 1}},
                "required": [PART],
            }
        },
        JSON: {"schema": ImagesBody.model_json_schema()},
    },
}


@router.post(
    IMAGES_PATH,
    response_model=ImagesAnswer,
    responses=pick_errors(400, 401, 404, 409, 413, 415, 422, 429, 503, 504),
    openapi_extra={"requestBody": _BODY},
    summary="Adapt a stream on images and answer them",
)
async def post_images(
    request: Request,
    stream: StreamName,
    top: Annotated[int, Query(ge=1, le=1000, description="Classes to list for each image.")] = 5,
    mode: Annotated[RequestMode, Query(description="answer: use the present state and adapt nothing.")] = "adapt",
    key: IdempotencyKey = None,
    timeout_ms: TimeoutMs = None,
) -> Response:
    """The images of a request are one step of their stream: it adapts on them, and answers them.

    An image that cannot be read has an error in its place, and the others are served. Requests of a stream are served
    in the order in which they arrive. The state of no other stream changes, and no other stream changes the answer.
    """
    service = find_service(request)
    check_stream(stream)
    kind = request.headers.get("content-type", "")

    def read(body: bytes) -> ImageStep:
        return ImageStep(stream, split_body(kind, body, service.settings.max_images), top, mode)

    _, answer = await run_step(request, service, read, key, timeout_ms, stream)
    body = describe_answer(answer, service.parts.model, service.engine.method.spec)
    return JSONResponse(body, headers={REPLAYED: "true"} if answer.replayed else None)
