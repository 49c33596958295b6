"""What is answered instead of a result: one JSON form for every error, and the codes of the reasons for refusing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from lmr.core.errors import LmrError
from lmr.service.engine.step_types import (
    CannotDo,
    ComputeFailed,
    DeadlinePassed,
    KeyInFlight,
    KeyReused,
    NotReady,
    QueueFull,
    Refused,
    StoreFailed,
    StreamMoved,
    UnknownStream,
)

_REASONS: dict[type[Refused], tuple[int, str]] = {
    UnknownStream: (404, "unknown_stream"),
    KeyInFlight: (409, "key_in_flight"),
    CannotDo: (409, "cannot_do"),
    StreamMoved: (409, "stream_moved"),
    KeyReused: (422, "key_reused"),
    QueueFull: (429, "queue_full"),
    ComputeFailed: (500, "internal"),
    NotReady: (503, "not_ready"),
    StoreFailed: (503, "store_failed"),
    DeadlinePassed: (504, "deadline_passed"),
}
_PLAIN = {404: "not_found", 405: "method_not_allowed"}


class ErrorWords(BaseModel):
    """``code`` is for programs, ``message`` a sentence for people."""

    code: str
    message: str


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorWords


class HttpProblem(Exception):
    """Ends a request with a code of HTTP, a word for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})

    def to_response(self, path: str) -> JSONResponse:
        """The answer to a request for ``path``. The inference protocol has a form of its own for errors: a text."""
        if path.startswith("/v2"):
            return JSONResponse({"error": self.message, "code": self.code}, self.status, self.headers)
        return JSONResponse({"error": {"code": self.code, "message": self.message}}, self.status, self.headers)


def explain_refusal(error: LmrError) -> HttpProblem:
    """The code of what the engine raised; an LmrError without a kind is about content that cannot be used."""
    status, code = next((found for kind, found in _REASONS.items() if isinstance(error, kind)), (422, "not_usable"))
    headers = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    elif status == 503:
        headers["Retry-After"] = "5"
    return HttpProblem(status, code, str(error), headers)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error in the one form."""

    async def answer_problem(request: Request, error: Any) -> JSONResponse:
        problem: HttpProblem = error
        return problem.to_response(request.url.path)

    async def answer_refusal(request: Request, error: Any) -> JSONResponse:
        return explain_refusal(error).to_response(request.url.path)

    async def answer_invalid(request: Request, error: Any) -> JSONResponse:
        return HttpProblem(400, "malformed", _describe_invalid(error)).to_response(request.url.path)

    async def answer_plain(request: Request, error: Any) -> JSONResponse:
        words = f"There is nothing at {request.method} {request.url.path}; /docs lists what there is."
        code = _PLAIN.get(error.status_code, "malformed")
        words = words if error.status_code in _PLAIN else f"{error.detail}."
        return HttpProblem(error.status_code, code, words, error.headers).to_response(request.url.path)

    app.add_exception_handler(HttpProblem, answer_problem)
    app.add_exception_handler(LmrError, answer_refusal)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_plain)


def _describe_invalid(error: RequestValidationError) -> str:
    """The first complaint as a sentence."""
    first = error.errors()[0]
    where = " ".join(str(part) for part in first["loc"])
    return f"The request is malformed: {first['msg']} (at {where})."


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request is malformed."},
    401: {"model": ErrorBody, "description": "The token is missing or wrong."},
    404: {"model": ErrorBody, "description": "There is no such stream."},
    409: {
        "model": ErrorBody,
        "description": "A request with this key is being served; or the stream has moved to another replica, and the "
        "request can be sent again; or this cannot be done now.",
    },
    413: {"model": ErrorBody, "description": "The body, the number of images or an image is too large."},
    415: {"model": ErrorBody, "description": "Not a JPEG, PNG or WebP image."},
    422: {
        "model": ErrorBody,
        "description": "No image can be read, or the key belongs to another body; or a state or labels do not fit.",
    },
    429: {"model": ErrorBody, "description": "The queue is full; Retry-After says when to try again."},
    503: {"model": ErrorBody, "description": "The service is loading or draining, or its store cannot be written."},
    504: {"model": ErrorBody, "description": "The deadline passed in the queue; nothing was adapted."},
}


def pick_errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route can answer, for its description."""
    return {code: ERRORS[code] for code in sorted(codes)}
