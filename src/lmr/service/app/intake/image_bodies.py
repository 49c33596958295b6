"""The images in a body: one file, the parts of a form, or base64 in JSON. An image that is no image has its place."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import BaseModel, FailFast, Field
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field as FormField
from python_multipart.multipart import File, FormParser, parse_options_header

from lmr.images.image_files import UnreadableImage
from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.intake.json_bodies import MOST_ITEMS, read_json_body

IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp")
FORM, JSON = "multipart/form-data", "application/json"
PART = "image"  # the name of the parts of a form
Picture = bytes | UnreadableImage  # the content of an image file, or why there is none


class EncodedImage(BaseModel):
    """The content of a JPEG, PNG or WebP file in base64."""

    b64: str


class ImagesBody(BaseModel):
    """Images in JSON."""

    images: Annotated[list[EncodedImage], FailFast()] = Field(min_length=1, max_length=MOST_ITEMS)


def split_body(content_type: str, body: bytes, most: int) -> list[Picture]:
    """The images of a body of one of the three kinds, at most so many."""
    kind, values = parse_options_header(content_type)
    name = kind.decode("latin-1").lower()
    if name in IMAGE_TYPES:
        pictures: list[Picture] = [body]
    elif name == FORM:
        pictures = _split_form(body, values.get(b"boundary"), most)
    elif name == JSON:
        pictures = _split_json(body, most)
    else:
        came = f"got {content_type!r}" if content_type else "got none"
        words = f"Expected a Content-Type of {', '.join([*IMAGE_TYPES, FORM])} or {JSON}, {came}."
        raise HttpProblem(415, "not_an_image_type", words)
    return pictures


def check_count(images: int, most: int) -> None:
    """Refuse more images than a request may have. Nobody counts how many more: a body may have millions of parts."""
    if images > most:
        words = f"The request has more than {most} images, the limit of --max-images; send them in several requests."
        raise HttpProblem(413, "too_many_images", words)


def decode_base64(text: str | bytes) -> Picture:
    """The content of a file that was encoded in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return UnreadableImage("The image is not base64; encode the content of the file, without line breaks.")


def _split_form(body: bytes, boundary: bytes | None, most: int) -> list[Picture]:
    if not boundary:
        raise HttpProblem(400, "malformed", "The Content-Type of the form names no boundary.")
    parts: list[tuple[bytes | None, bytes]] = []
    ends: list[bool] = []

    def keep(name: bytes | None, content: bytes) -> None:
        parts.append((name, content))
        check_count(len(parts), most)

    def keep_field(part: FormField) -> None:
        keep(part.field_name, part.value or b"")

    def keep_file(part: File) -> None:
        part.file_object.seek(0)
        keep(part.field_name, part.file_object.read())

    in_memory = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}  # nothing goes to the disk
    try:
        parser = FormParser(FORM, keep_field, keep_file, lambda: ends.append(True), boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise HttpProblem(400, "malformed", f"The form cannot be read: {error}.") from error
    if not ends:
        raise HttpProblem(400, "malformed", "The form is incomplete: its last boundary is missing.")
    others = [(name or b"").decode("utf-8", "replace") for name, _ in parts if name != PART.encode()]
    if others or not parts:
        came = f"got {', '.join(map(repr, others[:3]))}" if others else "got none"
        raise HttpProblem(400, "malformed", f"Expected parts of the form with the name {PART!r}, {came}.")
    return [content for _, content in parts]


def _split_json(body: bytes, most: int) -> list[Picture]:
    parsed = read_json_body(ImagesBody, body, '{"images": [{"b64": ...}, ...]}')
    check_count(len(parsed.images), most)
    return [decode_base64(image.b64) for image in parsed.images]
