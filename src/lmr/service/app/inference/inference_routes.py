"""Routes of the Open Inference Protocol, version 2, so that a client of KServe or Triton works as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.images_answer import place_answers
from lmr.service.app.inference.inference_tensors import (
    InferenceRequest,
    OutputTensor,
    read_pictures,
    read_request,
    write_answer,
)
from lmr.service.app.intake.image_steps import ImageStep, run_step
from lmr.service.app.intake.request_options import IdempotencyKey, TimeoutMs, check_stream, shorten
from lmr.service.app.live_service import LiveService, find_service
from lmr.service.engine.step_types import RequestMode, StepAnswer
from lmr.version import __version__

router = APIRouter(tags=["inference protocol v2"])
SERVER = "lmr-serve"
VERSION = "1"  # of the model; there is one
IMAGE, LABEL, PROBABILITIES = "image", "label", "probabilities"
NO_SEQUENCE = "default"  # the stream of requests that name none
_MODES: tuple[RequestMode, ...] = ("adapt", "answer")


@dataclass(frozen=True)
class InferenceStep(ImageStep):
    """What a request of the protocol asks for."""

    id: str
    wanted: dict[str, bool]  # the outputs, and whether each is sent as bytes


@router.get("/v2", summary="The server")
async def get_server() -> dict[str, Any]:
    """Its name, its version and the extensions of the protocol that it has."""
    return {"name": SERVER, "version": __version__, "extensions": ["binary_tensor_data", "sequence"]}


@router.get("/v2/health/live", summary="Whether the process is alive")
async def get_live() -> Response:
    """200 as long as the process answers; needs no token."""
    return JSONResponse({"live": True})


@router.get("/v2/health/ready", summary="Whether requests are served")
async def get_ready(request: Request) -> Response:
    """200 or 503; needs no token."""
    return _answer_ready(find_service(request))


@router.get("/v2/models/{model}", summary="The inputs and outputs of the model")
@router.get("/v2/models/{model}/versions/{version}", include_in_schema=False)
async def get_inference_model(request: Request, model: str, version: str = VERSION) -> dict[str, Any]:
    """One input, image files as BYTES; for each its label and the probabilities of all classes."""
    service = find_service(request)
    _check_model(service, model, version)
    classes = len(service.engine.names)
    return {
        "name": model,
        "versions": [VERSION],
        "platform": SERVER,
        "inputs": [{"name": IMAGE, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": LABEL, "datatype": "BYTES", "shape": [-1]},
            {"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, classes]},
        ],
    }


@router.get("/v2/models/{model}/ready", summary="Whether the model serves")
@router.get("/v2/models/{model}/versions/{version}/ready", include_in_schema=False)
async def get_model_ready(request: Request, model: str, version: str = VERSION) -> Response:
    """200 or 503."""
    service = find_service(request)
    _check_model(service, model, version)
    return _answer_ready(service)


@router.post("/v2/models/{model}/infer", summary="Adapt a stream on images and answer them")
@router.post("/v2/models/{model}/versions/{version}/infer", include_in_schema=False)
async def infer(
    request: Request,
    model: str,
    version: str = VERSION,
    key: IdempotencyKey = None,
    timeout_ms: TimeoutMs = None,
) -> Response:
    """As ``POST /v1/streams/{stream}/images``, in the tensors of the protocol.

    The stream is ``parameters.sequence_id``, "default" without it, and it goes on from request to request:
    ``sequence_start`` and ``sequence_end`` change nothing. ``parameters.mode`` may be "answer". The elements of
    ``image`` are files, in base64 if they are in JSON. An image that cannot be read has an empty label and
    probabilities of 0, and ``parameters.errors`` says why. An error is {"error": "..."}, as the protocol has it.
    """
    service = find_service(request)
    _check_model(service, model, version)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HttpProblem(415, "compressed", "Compressed requests are not accepted; images are compressed already.")
    head_length = request.headers.get("inference-header-content-length")

    def read(body: bytes) -> InferenceStep:
        asked, rest = read_request(body, head_length)
        pictures = read_pictures(asked, rest, IMAGE, service.settings.max_images)
        classes = len(service.engine.names)
        return InferenceStep(_find_stream(asked), pictures, classes, _find_mode(asked), asked.id, _find_outputs(asked))

    step, answer = await run_step(request, service, read, key, timeout_ms)
    body, headers = _describe(service, model, step, answer)
    return Response(body, headers=headers)


def find_inference_name(model: str) -> str:
    """The name of the model in a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-") or "model"


def _check_model(service: LiveService, model: str, version: str) -> None:
    own = find_inference_name(service.parts.model)
    if (model, version) != (own, VERSION):
        words = f"There is no model {model!r} of version {version!r}; there is {own!r} of version {VERSION!r}."
        raise HttpProblem(404, "unknown_model", words)


def _answer_ready(service: LiveService) -> Response:
    ready = service.look().state in ("ready", "degraded")
    return JSONResponse({"ready": ready}, 200 if ready else 503)


def _find_stream(asked: InferenceRequest) -> str:
    named = asked.parameters.get("sequence_id")
    return check_stream(NO_SEQUENCE if named in (None, 0, "") else str(named))


def _find_mode(asked: InferenceRequest) -> RequestMode:
    named = asked.parameters.get("mode", "adapt")
    for mode in _MODES:
        if mode == named:
            return mode
    raise HttpProblem(400, "malformed", f"Expected 'adapt' or 'answer' as parameters.mode, got {shorten(repr(named))}.")


def _find_outputs(asked: InferenceRequest) -> dict[str, bool]:
    by_default = bool(asked.parameters.get("binary_data_output", False))
    wanted = {output.name: bool(output.parameters.get("binary_data", by_default)) for output in asked.outputs}
    known = (LABEL, PROBABILITIES)
    if unknown := wanted.keys() - set(known):
        words = f"Expected outputs among {', '.join(known)}, got {', '.join(sorted(unknown))}."
        raise HttpProblem(400, "malformed", words)
    return wanted or dict.fromkeys(known, by_default)


def _describe(
    service: LiveService, model: str, step: InferenceStep, answer: StepAnswer
) -> tuple[bytes, dict[str, str]]:
    names = service.engine.names
    column = {name: number for number, name in enumerate(names)}
    found = place_answers(answer)
    shares = np.zeros((len(found), len(names)), np.float32)
    labels: list[str] = []
    errors = []
    for place, one in enumerate(found):
        if isinstance(one, str):
            labels.append("")
            errors.append(f"image {place}: {one}")
            continue
        labels.append(one[0][0])
        for name, share in one:
            shares[place, column[name]] = share
    tensors = {LABEL: OutputTensor(LABEL, labels), PROBABILITIES: OutputTensor(PROBABILITIES, shares)}
    head: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    head |= {"id": step.id} if step.id else {}
    head["parameters"] = {"sequence_id": answer.stream, "seq": answer.seq, "saved": answer.saved}
    head["parameters"] |= {"errors": " ".join(errors)} if errors else {}
    return write_answer(head, [tensors[name] for name in step.wanted], step.wanted)
