"""Read and check what a request says: its path, its headers and its body, each within its limits."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

from fastapi import Header, Path, Request
from pydantic import AfterValidator, BaseModel, ValidationError

from lmr.core.foreign_text import shorten
from lmr.service.app.errors import HttpProblem
from lmr.service.engine.requests import QueueFull

IMAGES_PATH = "/v1/streams/{stream}/images"
# In a JSON body, whatever the settings allow, as each takes an object of Python; and classes among them.
MOST_VALUES, MOST_CLASSES = 25_000, 20_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VISIBLE = re.compile(r"[\x21-\x7e]{1,200}")
_DIGITS = 18
_BEFORE_VALUES = (b"[", b"{", b",", b":")  # one of them comes before every value of JSON but the first
_PARSING = threading.Lock()
_BODIES_AT_ONCE = 32  # bodies of the largest size that may be in memory together
Body = TypeVar("Body", bound=BaseModel)


def is_visible(text: str) -> bool:
    """Return True if a header's value can be repeated as it is: 1 to 200 visible ASCII characters."""
    return _VISIBLE.fullmatch(text) is not None


def read_number(text: str, default: int) -> int:
    """Return the whole number in a header; ``default`` for anything else, and for too many digits."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else default


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
        description="Makes a retry safe: a request with the key and the images of one that was answered gets that "
        "answer again, and nothing adapts twice.",
    ),
    AfterValidator(_check_key),
]
TimeoutMs = Annotated[
    float | None,
    Header(
        alias="X-Timeout-Ms",
        description="Refuse the request with 504 if it waits longer than this; at most and by default 30 seconds.",
    ),
]


def choose_seconds(requested_ms: float | None, most_ms: float) -> float:
    """Return the seconds that a request may take before its batch is formed."""
    if requested_ms is None:
        return most_ms / 1000
    if not 1 <= requested_ms < float("inf"):
        raise HttpProblem(400, "malformed", f"Expected an X-Timeout-Ms of at least 1, got {requested_ms:g}.")
    return min(requested_ms, most_ms) / 1000


class BodyReader:
    """Reads bodies of at most ``limit`` bytes while they arrive; together they take at most 32 times as much."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0  # bytes

    @asynccontextmanager
    async def read(self, request: Request, seconds: float, most: int = sys.maxsize) -> AsyncIterator[bytes]:
        """Yield the whole body, which must arrive within ``seconds``. It counts as held until the context ends.

        A body of this kind has no use for more than ``most`` bytes.
        """
        most, announced = min(most, self.limit), request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise self._refuse_size(most)
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    self.held += len(chunk)
                    if len(body) > most:
                        raise self._refuse_size(most)
                    if self.held > _BODIES_AT_ONCE * self.limit:
                        raise QueueFull("The service has no memory left for another body; send this one again.", 1.0)
            yield bytes(body)
        except TimeoutError as error:
            message = f"The body did not arrive within {seconds:g} seconds; nothing was adapted."
            raise HttpProblem(504, "deadline_passed", message, {"Connection": "close"}) from error
        finally:
            self.held -= len(body)

    def _refuse_size(self, most: int) -> HttpProblem:
        message = f"The body has more than {most:,} bytes, which no list of this kind needs; send less."
        if most == self.limit:
            message = (
                f"The body has more than {most:,} bytes, the limit of --max-body; send fewer or smaller images, or "
                "raise it for the state of a stream."
            )
        return HttpProblem(413, "body_too_large", message, {"Connection": "close"})


def read_json_body(kind: type[Body], content: bytes, expected: str) -> Body:
    """Return the body as ``kind``, or raise 400 with what was ``expected`` and the first value that is wrong.

    Values are counted before they are parsed, because ten million bytes of brackets become gigabytes of objects, or of
    errors. Bodies are parsed one at a time: parsing keeps all other threads waiting, and more of them at once are no
    faster.
    """
    if _count_values(content) > MOST_VALUES:
        message = f"The JSON of the body has more than {MOST_VALUES:,} values; send less in a request."
        raise HttpProblem(413, "too_many_values", message)
    try:
        with _PARSING:
            return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = shorten(".".join(map(str, first["loc"]))) or "the body"
        message = f"Expected {expected}, but {where} is wrong: {first['msg']}."
        raise HttpProblem(400, "malformed", message) from error


def _count_values(content: bytes) -> int:
    """Return the number of values and keys, or that of all strings if there are too many of these."""
    if (most := sum(map(content.count, _BEFORE_VALUES))) <= MOST_VALUES:
        return most  # or less: strings may have these characters, too
    plain = content.replace(rb"\\", b"").replace(rb"\"", b"")  # every quote begins or ends a string now
    if (quotes := plain.count(b'"')) > 4 * MOST_VALUES:
        return quotes // 2
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, _BEFORE_VALUES))
