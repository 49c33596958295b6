"""Gate: what every request passes first and every answer last.

It checks the token and the host, gives the request an id, adds the headers that browsers protect the page by, counts
the request, and logs it as one line.
"""

from __future__ import annotations

import hmac
import logging
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmr.service.app.http_errors import HttpProblem
from lmr.service.app.intake.request_options import is_visible
from lmr.service.network import is_loopback

LOGGER = logging.getLogger("lmr.service.requests")
OPEN_PATHS = ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
ASSETS = "/assets/"
_DEFAULTS = [  # headers of every answer that does not set them itself
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_FAILED = "The service failed on this request; its log says why, under the request's X-Request-Id."
CountRequest = Callable[[str, int, float], None]


class Gate:
    """Stands around an app. Without a token only programs and pages of this machine get in."""

    def __init__(self, app: ASGIApp, token: str | None, count: CountRequest) -> None:
        self._app, self._token, self._count = app, token, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if is_visible(asked) else f"{random.getrandbits(128):032x}"  # not a secret
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0
        waits = "expect" in headers  # for a first answer before it sends the body

        async def receive_body() -> Message:
            nonlocal waits
            waits = False
            return await receive()

        async def send_protected(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                defaults = [pair for pair in _DEFAULTS if pair[0] not in names]
                # A client that was not asked for the body may leave it out: what follows would be taken for the body.
                closing = [(b"connection", b"close")] if waits and b"connection" not in names else []
                message["headers"] = [*given, (b"x-request-id", request_id.encode("latin-1")), *defaults, *closing]
            await send(message)

        try:
            problem = self._find_problem(scope, headers)
            if problem is None:
                await self._app(scope, receive_body if waits else receive, send_protected)
        except Exception:
            fields = {"path": scope["path"], "request_id": request_id}
            LOGGER.exception("a request failed", extra={"fields": fields})
            problem = HttpProblem(500, "internal", _FAILED)
        if problem is not None and status == 0:
            problem.headers["Connection"] = "close"  # a body that follows is not read
            await problem.to_response(scope["path"])(scope, receive, send_protected)
        self._note(scope, status, time.perf_counter() - started, request_id)

    def _find_problem(self, scope: Scope, headers: Headers) -> HttpProblem | None:
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(ASSETS):
            return None if self._token is not None else self._check_neighbour(headers)
        return self._check_neighbour(headers) if self._token is None else self._check_token(headers, self._token)

    def _check_token(self, headers: Headers, token: str) -> HttpProblem | None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode()):
            return None
        words = "Expected the service's token in the header 'Authorization: Bearer ...'; it is missing or wrong."
        return HttpProblem(401, "token", words, {"WWW-Authenticate": "Bearer"})

    def _check_neighbour(self, headers: Headers) -> HttpProblem | None:
        """Without a token, a page of another site must not reach the service through the browser of this machine."""
        host = _find_host(headers.get("host", ""))
        origin = headers.get("origin")
        if not is_loopback(host):
            words = (
                f"Expected a request to localhost, got one to {host!r}; other hosts need a service with --token-file."
            )
            return HttpProblem(400, "foreign_host", words)
        if headers.get("sec-fetch-site") == "cross-site" or (origin and _find_host(urlsplit(origin).netloc) != host):
            words = "A page of another site may not use this service; give it a --token-file for that."
            return HttpProblem(400, "foreign_origin", words)
        return None

    def _note(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route: Any = scope.get("route")
        pattern = getattr(route, "path", "") or "none"
        self._count(pattern, status, seconds)
        client = scope.get("client") or ("", 0)
        LOGGER.info(
            "request",
            extra={
                "fields": {
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "ms": round(1000 * seconds, 2),
                    "request_id": request_id,
                    "client": client[0],
                }
            },
        )


def _find_host(netloc: str) -> str:
    """The host of "host:port" without its port, of "[::1]:80" without brackets."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""
