"""Gate: every request passes it first and every answer last.

It checks the token and the host, gives the request an id, adds the headers that protect the page in a browser, counts
the request, and logs it as one line.
"""

from __future__ import annotations

import hmac
import logging
import random
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmr.service.app.errors import HttpProblem
from lmr.service.app.request import is_visible
from lmr.service.app.service import LiveService
from lmr.service.network import is_loopback

LOGGER = logging.getLogger("lmr.service.requests")
OPEN_PATHS = ("/", "/docs", "/openapi.json", "/healthz", "/readyz")
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
_PORTS = {"http": 80, "https": 443}
_READING = ("GET", "HEAD")
_CLOSE = {"Connection": "close"}  # a body that follows is not read


class Gate:
    """ASGI middleware around the app. Without a token only programs and pages of this machine get in."""

    def __init__(self, app: ASGIApp, service: LiveService, token: str | None) -> None:
        self._app, self._service, self._token = app, service, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if is_visible(given_id) else f"{random.getrandbits(128):032x}"  # not a secret
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def send_protected(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                defaults = [pair for pair in _DEFAULTS if pair[0] not in names]
                message["headers"] = [*given, (b"x-request-id", request_id.encode("latin-1")), *defaults]
            await send(message)

        try:
            problem = self._check_access(scope, headers)
            if problem is None:
                await self._app(scope, receive, send_protected)
        except Exception:
            fields = {"path": scope["path"], "request_id": request_id}
            LOGGER.exception("a request failed", extra={"fields": fields})
            problem = HttpProblem(500, "internal", _FAILED, _CLOSE)
        if problem is not None and status == 0:
            await problem.to_response()(scope, receive, send_protected)
        self._record(scope, status, time.perf_counter() - started, request_id)

    def _check_access(self, scope: Scope, headers: Headers) -> HttpProblem | None:
        if self._token is None:
            return _check_local(scope, headers)
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(ASSETS):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        message = "Expected the service's token in the header 'Authorization: Bearer ...'; it is missing or wrong."
        return HttpProblem(401, "token", message, {"WWW-Authenticate": "Bearer", **_CLOSE})

    def _record(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route = getattr(scope.get("route"), "path", "") or "none"
        self._service.metrics.add_request(route, status, seconds)
        fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(1000 * seconds, 2),
            "request_id": request_id,
            "client": (scope.get("client") or ("", 0))[0],
        }
        LOGGER.info("request", extra={"fields": fields})


def _check_local(scope: Scope, headers: Headers) -> HttpProblem | None:
    """Without a token, a page of another origin must not reach the service through the browser of this machine.

    Another port of this machine is another origin: whoever serves a page there is not the owner of the service. Such a
    page may link to this one, but not change anything here.
    """
    scheme, own = str(scope.get("scheme", "http")), headers.get("host", "")
    host = _split_origin(scheme, own)[1]
    if not is_loopback(host):
        message = f"Expected a request to localhost, got one to {host!r}; other hosts need a service with --token-file."
        return HttpProblem(400, "foreign_host", message, _CLOSE)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    given, _, netloc = (origin or "").partition("://")
    foreign = bool(origin) and _split_origin(given, netloc) != _split_origin(scheme, own)
    if foreign or site == "cross-site" or (site == "same-site" and scope["method"] not in _READING):
        message = "A page of another origin may not use this service; give it a --token-file for that."
        return HttpProblem(400, "foreign_origin", message, _CLOSE)
    return None


def _split_origin(scheme: str, netloc: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of an origin; the host of "[::1]:80" has no brackets.

    What is not an origin, such as "null", has an empty host.
    """
    try:
        parts = urlsplit(f"{scheme}://{netloc}")
        return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return scheme, "", None
