"""The Open Inference Protocol, version 2, so that a client of KServe or Triton works as it is.

Tensors are in JSON, or follow it as bytes (the protocol's extension for binary data).
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, FailFast, Field

from lmr.core.known import UNKNOWN
from lmr.images.files import UnreadableImage
from lmr.service.app.errors import HttpProblem, document_errors
from lmr.service.app.images import ImageFile, check_count, decode_base64
from lmr.service.app.request import (
    IdempotencyKey,
    TimeoutMs,
    check_stream,
    read_json_body,
    read_number,
    shorten,
)
from lmr.service.app.service import LiveService, find_service
from lmr.service.app.steps import ImageStep
from lmr.service.engine.requests import RequestMode, StepAnswer
from lmr.version import __version__


class ProtocolError(BaseModel):
    """The body of every answer of the protocol that is an error: a sentence for people, a code for programs."""

    error: str
    code: str


def _document_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return document_errors(*statuses, body=ProtocolError)


router = APIRouter(tags=["inference protocol v2"])
_OF_MODEL = _document_errors(400, 401, 404, 503)
SERVER = "lmr-serve"
VERSION = "1"  # of the model; there is one
IMAGE, LABEL, PROBABILITIES = "image", "label", "probabilities"
DEFAULT_STREAM = "default"  # of requests that name none
MOST_TENSORS, MOST_EDGES = 100, 8  # in a request, and in a shape
ALL = 2**31  # more classes than there are
_LENGTH = struct.Struct("<I")  # before each element of a tensor of BYTES


def _check_scalars(values: dict[str, Any]) -> dict[str, Any]:
    """Raise a ValueError for lists and objects among the values; at the first, as there may be thousands."""
    if any(isinstance(value, (dict, list)) for value in values.values()):
        raise ValueError("expected texts, numbers, true, false or null")
    return values


Parameters = Annotated[dict[str, Any], AfterValidator(_check_scalars)]


class InferenceInput(BaseModel):
    """One tensor of a request. ``data`` is missing where it follows as bytes."""

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], FailFast()] = Field(max_length=MOST_EDGES)
    datatype: str
    parameters: Parameters = Field(default_factory=dict)
    data: list[Any] | None = None


class InferenceOutput(BaseModel):
    """A requested tensor; ``parameters.binary_data`` requests it as bytes."""

    name: str
    parameters: Parameters = Field(default_factory=dict)


class InferenceParameters(BaseModel):
    """Parameters of a request; others are ignored. The stream is ``sequence_id``."""

    sequence_id: str | int | None = None
    mode: RequestMode = "adapt"
    binary_data_output: bool = False


class InferenceRequest(BaseModel):
    """A request of the inference protocol."""

    id: str = ""
    parameters: InferenceParameters = Field(default_factory=InferenceParameters)
    inputs: Annotated[list[InferenceInput], FailFast()] = Field(max_length=MOST_TENSORS)
    outputs: Annotated[list[InferenceOutput], FailFast()] = Field(default_factory=list, max_length=MOST_TENSORS)


@dataclass(frozen=True)
class InferenceStep(ImageStep):
    """The content of a request of the protocol."""

    id: str
    outputs: dict[str, bool]  # the names of the outputs, and True for those to send as bytes


# Routes.


@router.get("/v2", responses=_document_errors(400, 401), summary="Describe the server")
async def get_server() -> dict[str, Any]:
    """Return its name, its version and the extensions of the protocol that it has."""
    return {"name": SERVER, "version": __version__, "extensions": ["binary_tensor_data", "sequence"]}


@router.get("/v2/health/live", summary="Check that the process is alive")
async def get_live() -> Response:
    """Return 200 as long as the process answers; needs no token."""
    return JSONResponse({"live": True})


@router.get("/v2/health/ready", summary="Check that requests are served")
async def get_ready(request: Request) -> Response:
    """Return 200 or 503; needs no token."""
    return _answer_ready(find_service(request))


@router.get("/v2/models/{model}", responses=_OF_MODEL, summary="Describe the inputs and outputs of the model")
@router.get("/v2/models/{model}/versions/{version}", include_in_schema=False)
async def get_inference_model(request: Request, model: str, version: str = VERSION) -> dict[str, Any]:
    """Return one input, image files as BYTES, and two outputs: the label and the probabilities of all classes."""
    service = find_service(request)
    _check_model(service, model, version)
    return {
        "name": model,
        "versions": [VERSION],
        "platform": SERVER,
        "inputs": [{"name": IMAGE, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": LABEL, "datatype": "BYTES", "shape": [-1]},
            {"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, len(service.engine.names)]},
        ],
    }


@router.get("/v2/models/{model}/ready", responses=_OF_MODEL, summary="Check that the model serves")
@router.get("/v2/models/{model}/versions/{version}/ready", include_in_schema=False)
async def get_model_ready(request: Request, model: str, version: str = VERSION) -> Response:
    """Return 200 or 503."""
    service = find_service(request)
    _check_model(service, model, version)
    return _answer_ready(service)


@router.post(
    "/v2/models/{model}/infer",
    responses=_document_errors(400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503, 504),
    summary="Adapt a stream on images and answer them",
)
@router.post("/v2/models/{model}/versions/{version}/infer", include_in_schema=False)
async def infer(
    request: Request, model: str, version: str = VERSION, key: IdempotencyKey = None, timeout_ms: TimeoutMs = None
) -> Response:
    """Do the same as ``POST /v1/streams/{stream}/images``, with the tensors of the protocol.

    The stream is ``parameters.sequence_id``, "default" without it, and it continues from request to request:
    ``sequence_start`` and ``sequence_end`` change nothing. ``parameters.mode`` may be "answer". The elements of
    ``image`` are files, in base64 if they are in JSON. An image that cannot be read has an empty label and
    probabilities of 0, and ``parameters.errors`` says why; one of none of the classes has the label "unknown". An error
    is {"error": "..."}, as the protocol has it.
    """
    service = find_service(request)
    _check_model(service, model, version)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HttpProblem(415, "compressed", "Compressed requests are not accepted; images are compressed already.")
    head_length = request.headers.get("inference-header-content-length")

    def read(body: bytes) -> InferenceStep:
        return _read_step(body, head_length, service)

    before = service.engine.names
    step, answer = await service.steps.run(request, read, key, timeout_ms)
    return _write_answer(_find_columns(answer, service.engine.names, before), model, step, answer)


def find_inference_name(model: str) -> str:
    """Return the name of the model in a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-") or "model"


def _check_model(service: LiveService, model: str, version: str) -> None:
    own = find_inference_name(service.loaded.model)
    if (model, version) != (own, VERSION):
        message = f"There is no model {model!r} of version {version!r}; there is {own!r} of version {VERSION!r}."
        raise HttpProblem(404, "unknown_model", message)


def _answer_ready(service: LiveService) -> Response:
    ready = service.read_overview().state in ("ready", "degraded")
    return JSONResponse({"ready": ready}, 200 if ready else 503)


# Requests.


def _read_step(body: bytes, head_length: str | None, service: LiveService) -> InferenceStep:
    """Return the content of a body; ``head_length`` says where the JSON ends and the bytes begin."""
    length = len(body) if head_length is None else read_number(head_length, -1)
    if not 0 <= length <= len(body):
        came = shorten(head_length or "")
        raise _refuse(f"Expected an Inference-Header-Content-Length from 0 to {len(body)}, got {came!r}.")
    query = read_json_body(InferenceRequest, body[:length], "a request of the inference protocol")
    files = _read_files(query, body[length:], service.settings.max_images)
    stream = check_stream(str(query.parameters.sequence_id or DEFAULT_STREAM))
    return InferenceStep(stream, files, ALL, query.parameters.mode, query.id, _read_outputs(query))


def _read_outputs(query: InferenceRequest) -> dict[str, bool]:
    default = query.parameters.binary_data_output
    requested = {output.name: bool(output.parameters.get("binary_data", default)) for output in query.outputs}
    known = (LABEL, PROBABILITIES)
    if unknown := requested.keys() - set(known):
        raise _refuse(f"Expected outputs among {', '.join(known)}, got {shorten(', '.join(sorted(unknown)))}.")
    return requested or dict.fromkeys(known, default)


def _read_files(query: InferenceRequest, rest: bytes, most: int) -> list[ImageFile]:
    """Return the elements of the only input: image files as bytes, or in base64 in JSON; at most ``most``."""
    if len(query.inputs) != 1 or query.inputs[0].name != IMAGE or query.inputs[0].datatype != "BYTES":
        came = ", ".join(f"{item.name} of {item.datatype}" for item in query.inputs[:3]) or "none"
        raise _refuse(f"Expected one input, {IMAGE!r} of BYTES, got {shorten(came)}.")
    tensor = query.inputs[0]
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        elements = list(islice(_flatten(tensor.data or []), most + 1))
        check_count(len(elements), most)
        files = [_decode_element(element) for element in elements]
    elif size != len(rest):
        raise _refuse(f"The input announces {shorten(str(size))} bytes, and {len(rest)} follow the JSON.")
    else:
        files = list(islice(_split_elements(rest), most + 1))
        check_count(len(files), most)
    if not files or math.prod(tensor.shape) != len(files):
        raise _refuse(f"The shape {shorten(str(tensor.shape))} of the input does not fit its {len(files)} elements.")
    return files


def _decode_element(element: Any) -> ImageFile:
    """Return an element in JSON: base64, as a text or as {"b64": ...}."""
    if isinstance(element, dict):
        element = element.get("b64")
    if not isinstance(element, str):
        return UnreadableImage("The image is not a text in base64.")
    return decode_base64(element)


def _flatten(data: list[Any]) -> Iterator[Any]:
    """Yield the elements of nested lists; not by recursion, as a body may nest them without end."""
    levels = [iter(data)]
    while levels:
        for item in levels[-1]:
            if isinstance(item, list):
                levels.append(iter(item))
                break
            yield item
        else:
            levels.pop()


def _split_elements(content: bytes) -> Iterator[ImageFile]:
    start = 0
    while start < len(content):
        first = start + _LENGTH.size
        end = first + _LENGTH.unpack_from(content, start)[0] if first <= len(content) else len(content) + 1
        if end > len(content):
            raise _refuse("The last element of the input is cut off.")
        yield content[first:end]
        start = end


def _refuse(message: str) -> HttpProblem:
    return HttpProblem(400, "malformed", message)


# Answers.


def _find_columns(answer: StepAnswer, *lists: list[str]) -> list[str]:
    """Return the classes that were answered in their order: those of now or, if they were changed, of before.

    An answer that is sent again may be older; its classes are sorted.
    """
    known = {name for one in answer.answers for name, _ in one.top}
    return next((names for names in lists if known in (set(), set(names))), sorted(known))


def _write_answer(names: Sequence[str], model: str, step: InferenceStep, answer: StepAnswer) -> Response:
    column = {name: number for number, name in enumerate(names)}
    shares = np.zeros((len(answer.answers), len(names)), np.float32)
    labels = ["" if result.error else result.label or UNKNOWN for result in answer.answers]
    errors = [f"image {place}: {one.error}" for place, one in enumerate(answer.answers) if one.error]
    for position, result in enumerate(answer.answers):
        for name, share in result.top:
            shares[position, column[name]] = share
    outputs, rest = [], b""
    for name, binary in step.outputs.items():
        if name == LABEL:
            output: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": [len(labels)]}
        else:
            output = {"name": name, "datatype": "FP32", "shape": list(shares.shape)}
        if binary:
            content = _pack_texts(labels) if name == LABEL else shares.astype("<f4").tobytes()
            outputs.append(output | {"parameters": {"binary_data_size": len(content)}})
            rest += content
        else:
            outputs.append(output | {"data": labels if name == LABEL else shares.ravel().tolist()})
    head: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    head |= {"id": step.id} if step.id else {}
    head["parameters"] = {"sequence_id": answer.stream, "seq": answer.seq, "saved": answer.saved}
    head["parameters"] |= {"errors": " ".join(errors)} if errors else {}
    text = json.dumps(head | {"outputs": outputs}).encode()
    if not rest:
        return Response(text, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return Response(text + rest, headers=headers, media_type="application/octet-stream")


def _pack_texts(texts: Sequence[str]) -> bytes:
    return b"".join(_LENGTH.pack(len(text.encode())) + text.encode() for text in texts)
