"""Read and check what a request says: its path, its headers and its body, each within its limits."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

from fastapi import Header, Path, Request
from pydantic import AfterValidator, BaseModel, ValidationError

from lmr.core.foreign_text import shorten
from lmr.service.app.errors import HttpProblem
from lmr.service.engine.requests import QueueFull

IMAGES_PATH = "/v1/streams/{stream}/images"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VISIBLE = re.compile(r"[\x21-\x7e]{1,200}")
_BODIES_AT_ONCE = 32  # bodies of the largest size that may be in memory together
Body = TypeVar("Body", bound=BaseModel)


def is_visible(text: str) -> bool:
    """Return True if a header's value can be repeated as it is: 1 to 200 visible ASCII characters."""
    return _VISIBLE.fullmatch(text) is not None


def check_stream(name: str) -> str:
    """Return the name of a stream, or raise 400."""
    if not _NAME.fullmatch(name):
        message = (
            "Expected the name of a stream of at most 128 letters, digits, '.', '_' and '-' that begins with a letter "
            f"or a digit, got {shorten(name)!r}."
        )
        raise HttpProblem(400, "stream_name", message)
    return name


def _check_key(key: str | None) -> str | None:
    if key is not None and not is_visible(key):
        raise HttpProblem(400, "malformed", "Expected an Idempotency-Key of 1 to 200 visible ASCII characters.")
    return key


StreamName = Annotated[
    str,
    Path(
        description="The name of the stream: letters, digits, '.', '_' and '-', the first a letter or a digit, at "
        "most 128 characters.",
        examples=["cam-17"],
    ),
    AfterValidator(check_stream),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes a retry safe: a request with the key and the images of one that has adapted gets that "
        "answer again, and nothing adapts twice.",
    ),
    AfterValidator(_check_key),
]


class BodyReader:
    """Reads bodies of at most ``limit`` bytes while they arrive; together they take at most 32 times as much."""

    def __init__(self, limit: int, seconds: float) -> None:
        self.limit, self._seconds = limit, seconds
        self.held = 0  # bytes

    @asynccontextmanager
    async def read(self, request: Request, most: int = sys.maxsize) -> AsyncIterator[bytes]:
        """Yield the whole body, of at most ``most`` bytes. It counts as held until the context ends."""
        most, announced = min(most, self.limit), request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise self._refuse_size(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                async for chunk in request.stream():
                    body += chunk
                    self.held += len(chunk)
                    if len(body) > most:
                        raise self._refuse_size(most)
                    if self.held > _BODIES_AT_ONCE * self.limit:
                        raise QueueFull("The service has no memory left for another body; send this one again.", 1.0)
            yield bytes(body)
        except TimeoutError as error:
            message = f"The body did not arrive within {self._seconds:g} seconds; nothing was adapted."
            raise HttpProblem(504, "deadline_passed", message, {"Connection": "close"}) from error
        finally:
            self.held -= len(body)

    def _refuse_size(self, most: int) -> HttpProblem:
        message = f"The body has more than {most:,} bytes; send less, or raise --max-body for a state or images."
        return HttpProblem(413, "body_too_large", message, {"Connection": "close"})


def read_json_body(kind: type[Body], content: bytes) -> Body:
    """Return the body as ``kind``, or raise 400 with the first value that is wrong."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = shorten(".".join(map(str, first["loc"]))) or "the body"
        raise HttpProblem(400, "malformed", f"In the JSON, {where} is wrong: {first['msg']}.") from error
