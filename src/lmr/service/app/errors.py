"""Errors over HTTP: one JSON form for all of them, and the status of each reason for a refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lmr.core.errors import LmrError
from lmr.service.engine import requests

_REASONS: dict[type[requests.Refused], tuple[int, str]] = {
    requests.StreamLimit: (403, "too_many_streams"),
    requests.UnknownStream: (404, "unknown_stream"),
    requests.KeyInFlight: (409, "key_in_flight"),
    requests.CannotDo: (409, "cannot_do"),
    requests.StreamMoved: (409, "stream_moved"),
    requests.KeyReused: (422, "key_reused"),
    requests.QueueFull: (429, "queue_full"),
    requests.ComputeFailed: (500, "internal"),
    requests.StreamDamaged: (500, "stream_damaged"),
    requests.NotReady: (503, "not_ready"),
    requests.StoreFailed: (503, "store_failed"),
    requests.DeadlinePassed: (504, "deadline_passed"),
}
_MOST_CHARACTERS = 2000  # of a message, which may repeat what a client sent
_CLIENT_GONE = 499  # the status in logs and metrics of a request whose client has gone; nobody receives it


class ErrorDetail(BaseModel):
    """``code`` is for programs, ``message`` a sentence for people."""

    code: str
    message: str


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class HttpProblem(Exception):
    """Ends a request with an HTTP status, a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        short = message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}..."
        super().__init__(short)
        self.status, self.code, self.message, self.headers = status, code, short, dict(headers or {})

    def to_response(self) -> JSONResponse:
        """Return the answer to the request."""
        return JSONResponse({"error": {"code": self.code, "message": self.message}}, self.status, self.headers)


class ClientGone(Exception):
    """Nobody waits for the answer."""


def explain_refusal(error: LmrError) -> HttpProblem:
    """Return the problem for an error of the engine; an LmrError of no listed kind is about unusable content."""
    status, code = next((found for kind, found in _REASONS.items() if isinstance(error, kind)), (422, "not_usable"))
    headers = {}
    if isinstance(error, requests.QueueFull):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    elif status == 503:
        headers["Retry-After"] = "5"
    return HttpProblem(status, code, str(error), headers)


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of the routes in the one form."""

    async def answer(request: Request, error: Exception) -> Response:
        return _to_problem(request, error).to_response()

    async def answer_nobody(request: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_GONE)

    for error in (HttpProblem, LmrError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, answer)
    for gone in (ClientGone, ClientDisconnect):
        app.add_exception_handler(gone, answer_nobody)


def _to_problem(request: Request, error: Exception) -> HttpProblem:
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, LmrError):
        return explain_refusal(error)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"])
        return HttpProblem(400, "malformed", f"The request is malformed: {first['msg']} (at {where}).")
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    if code is None:
        return HttpProblem(error.status_code, "malformed", f"{error.detail}.", error.headers)
    message = f"There is nothing at {request.method} {request.url.path}; see /docs for the routes."
    return HttpProblem(error.status_code, code, message, error.headers)
