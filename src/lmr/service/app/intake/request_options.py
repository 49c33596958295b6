"""What the path, the query and the headers of a request say, checked."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header, Path

from lmr.service.app.http_errors import HttpProblem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,200}")
_DIGITS, _SHOWN = 18, 40

StreamName = Annotated[
    str,
    Path(
        description="The name of the stream: letters, digits, '.', '_' and '-', the first a letter or a digit, at "
        "most 128 characters.",
        examples=["cam-17"],
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes a retry safe: a request with the key and the images of one that was answered gets that "
        "answer again, and nothing adapts twice.",
    ),
]
TimeoutMs = Annotated[
    float | None,
    Header(
        alias="X-Timeout-Ms",
        description="Refuse the request with 504 if it waited so long; at most and by default --timeout-ms.",
    ),
]


def check_stream(name: str) -> str:
    """The name of a stream, or 400."""
    if not _NAME.fullmatch(name):
        words = (
            "Expected the name of a stream of at most 128 letters, digits, '.', '_' and '-' that begins with a letter "
            f"or a digit, got {shorten(name)!r}."
        )
        raise HttpProblem(400, "stream_name", words)
    return name


def check_key(key: str | None) -> str | None:
    """An idempotency key, or 400."""
    if key is not None and not _TOKEN.fullmatch(key):
        raise HttpProblem(400, "malformed", "Expected an Idempotency-Key of 1 to 200 visible ASCII characters.")
    return key


def choose_seconds(asked_ms: float | None, most_ms: float) -> float:
    """How long a request may take before its batch is formed, in seconds."""
    if asked_ms is None:
        return most_ms / 1000
    if not 1 <= asked_ms < float("inf"):
        raise HttpProblem(400, "malformed", f"Expected an X-Timeout-Ms of at least 1, got {asked_ms:g}.")
    return min(asked_ms, most_ms) / 1000


def is_visible(text: str) -> bool:
    """Whether a header's value can be repeated as it is: visible ASCII characters, and not many."""
    return _TOKEN.fullmatch(text) is not None


def read_number(text: str, otherwise: int) -> int:
    """A whole number of a header; ``otherwise`` for anything else, and for more digits than any such number has."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else otherwise


def shorten(text: str) -> str:
    """What a client sent, for an error message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
