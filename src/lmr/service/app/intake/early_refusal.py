"""EarlyRefusal: under overload most requests are refused, so a refusal must cost little."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lmr.service.app.http_errors import explain_refusal
from lmr.service.app.live_service import LiveService
from lmr.service.engine.step_types import NotReady, QueueFull

IMAGES_PATH = "/v1/streams/{stream}/images"
_STREAM = re.compile(IMAGES_PATH.replace("{stream}", "([^/]+)"))


@dataclass(frozen=True)
class _Route:
    """What the metrics call a request by."""

    path: str


class EarlyRefusal:
    """Stands around an app and refuses images that find no room by the head of their request.

    The body is neither waited for nor parsed, and the routes are not asked; uvicorn drops it as it arrives, and the
    connection can be used again. A body that is larger than ``max_body`` is left to the app, which closes the
    connection.
    """

    def __init__(self, app: ASGIApp, service: LiveService) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refusal = self._find_refusal(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = _Route(IMAGES_PATH)
        await explain_refusal(refusal).to_response(scope["path"])(scope, receive, send)

    def _find_refusal(self, scope: Scope) -> QueueFull | None:
        found = _STREAM.fullmatch(scope["path"])
        if found is None:
            return None
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > self._service.settings.max_body:
            return None
        try:
            self._service.engine.check_room(found[1], headers.get("idempotency-key"))
        except QueueFull as error:
            return error
        except NotReady:  # the app says so
            return None
        return None
