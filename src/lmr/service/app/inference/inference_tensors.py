"""Tensors of the inference protocol: in JSON, and as bytes behind it (the extension for binary data)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, FailFast, Field

from lmr.images.image_files import UnreadableImage
from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.intake.image_bodies import Picture, check_count, decode_base64
from lmr.service.app.intake.json_bodies import read_json_body
from lmr.service.app.intake.request_options import read_number, shorten

MOST_TENSORS = 100  # that a request may name
_LENGTH = struct.Struct("<I")  # before each element of a tensor of BYTES


class InferenceInput(BaseModel):
    """One tensor of a request. ``data`` is missing where it follows as bytes."""

    name: str
    shape: Annotated[list[int], FailFast()]
    datatype: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    data: list[Any] | None = None


class InferenceOutput(BaseModel):
    """A tensor that is asked for; ``parameters.binary_data`` asks for it as bytes."""

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class InferenceRequest(BaseModel):
    """A request of the inference protocol. The stream is ``parameters.sequence_id``."""

    id: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    inputs: Annotated[list[InferenceInput], FailFast()] = Field(max_length=MOST_TENSORS)
    outputs: Annotated[list[InferenceOutput], FailFast()] = Field(default_factory=list, max_length=MOST_TENSORS)


@dataclass(frozen=True)
class OutputTensor:
    """A tensor of an answer: text [n] as BYTES, or numbers [n, c] as FP32."""

    name: str
    values: list[str] | np.ndarray[Any, np.dtype[np.float32]]

    @property
    def datatype(self) -> str:
        """As the protocol calls it."""
        return "BYTES" if isinstance(self.values, list) else "FP32"

    @property
    def shape(self) -> list[int]:
        """Its size in every dimension."""
        return [len(self.values)] if isinstance(self.values, list) else list(self.values.shape)

    def to_bytes(self) -> bytes:
        """Its values as the extension for binary data has them."""
        if isinstance(self.values, list):
            return b"".join(_LENGTH.pack(len(text.encode())) + text.encode() for text in self.values)
        return self.values.astype("<f4").tobytes()

    def to_list(self) -> list[Any]:
        """Its values in one row, for JSON."""
        return self.values if isinstance(self.values, list) else [float(value) for value in self.values.ravel()]


def read_request(body: bytes, head_length: str | None) -> tuple[InferenceRequest, bytes]:
    """The request, and the bytes that follow its JSON; ``head_length`` says where they begin."""
    length = len(body) if head_length is None else read_number(head_length, -1)
    if not 0 <= length <= len(body):
        words = (
            f"Expected an Inference-Header-Content-Length from 0 to {len(body)}, got {shorten(head_length or '')!r}."
        )
        raise HttpProblem(400, "malformed", words)
    return read_json_body(InferenceRequest, body[:length], "a request of the inference protocol"), body[length:]


def read_pictures(request: InferenceRequest, rest: bytes, name: str, most: int) -> list[Picture]:
    """The elements of the only input, which are image files: bytes, or base64 in JSON. They are at most so many."""
    if len(request.inputs) != 1 or request.inputs[0].name != name or request.inputs[0].datatype != "BYTES":
        came = ", ".join(f"{item.name} of {item.datatype}" for item in request.inputs[:3]) or "none"
        raise HttpProblem(400, "malformed", f"Expected one input, {name!r} of BYTES, got {shorten(came)}.")
    tensor = request.inputs[0]
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        elements = list(islice(_flatten(tensor.data or []), most + 1))
        check_count(len(elements), most)
        pictures = [_decode_element(element) for element in elements]
    elif size != len(rest):
        words = f"The input announces {shorten(str(size))} bytes, and {len(rest)} follow the JSON."
        raise HttpProblem(400, "malformed", words)
    else:
        pictures = list(islice(_split_elements(rest), most + 1))
        check_count(len(pictures), most)
    if not pictures or not _fits(tensor.shape, len(pictures)):
        shown = shorten(str(tensor.shape[:8]))
        raise HttpProblem(
            400, "malformed", f"The shape {shown} of the input does not fit its {len(pictures)} elements."
        )
    return pictures


def write_answer(
    head: dict[str, Any], tensors: list[OutputTensor], binary: dict[str, bool]
) -> tuple[bytes, dict[str, str]]:
    """The body of an answer and its headers; ``binary`` names the tensors that follow the JSON as bytes."""
    outputs, rest = [], b""
    for tensor in tensors:
        output: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary[tensor.name]:
            content = tensor.to_bytes()
            outputs.append(output | {"parameters": {"binary_data_size": len(content)}})
            rest += content
        else:
            outputs.append(output | {"data": tensor.to_list()})
    text = json.dumps(head | {"outputs": outputs}).encode()
    if not rest:
        return text, {"Content-Type": "application/json"}
    return text + rest, {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(text)),
    }


def _decode_element(element: Any) -> Picture:
    """An element in JSON: base64, plainly or as {"b64": ...}."""
    if isinstance(element, dict):
        element = element.get("b64")
    if not isinstance(element, str):
        return UnreadableImage("The image is not a text in base64.")
    return decode_base64(element)


def _flatten(data: list[Any]) -> Iterator[Any]:
    """The elements of nested lists, one after the other."""
    levels = [iter(data)]
    while levels:
        for item in levels[-1]:
            if isinstance(item, list):
                levels.append(iter(item))
                break
            yield item
        else:
            levels.pop()


def _fits(shape: Sequence[int], count: int) -> bool:
    """Whether a tensor of this shape has so many elements, without multiplying numbers of any size."""
    size = 1
    for edge in shape:
        size *= edge
        if not 0 < size <= count:
            return False
    return size == count


def _split_elements(content: bytes) -> Iterator[Picture]:
    place = 0
    while place < len(content):
        start = place + _LENGTH.size
        end = start + _LENGTH.unpack_from(content, place)[0] if start <= len(content) else len(content) + 1
        if end > len(content):
            raise HttpProblem(400, "malformed", "The last element of the input is cut off.")
        yield content[start:end]
        place = end
