"""make_app: the service as an ASGI app.

A request passes uvicorn (``server``), the ``gate``, and a route (``routes`` or ``events``). Images pass
through ``steps``, which reads the body (``request``), decodes it (``images``) and waits for the engine's answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from lmr.service.app import events, routes
from lmr.service.app.errors import ErrorBody, add_error_handlers
from lmr.service.app.gate import ASSETS, Gate
from lmr.service.app.service import LiveService
from lmr.service.page import ASSETS_FOLDER, SAMPLES_FOLDER
from lmr.version import __version__

_DESCRIPTION = """\
Each stream of images has an adaptive state of its own. A request with images is one step of its stream: it adapts on
them and answers them. Errors have one form, {"error": {"code": ..., "message": ...}}.
With a token, send the header "Authorization: Bearer TOKEN"."""


def make_app(service: LiveService, *, token: str | None = None) -> FastAPI:
    """Return an app around a service.

    Without ``token`` only requests to localhost are answered.
    """
    app = FastAPI(
        title="lmr serve",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=_follow_events,
        responses={kind: {"model": ErrorBody, "description": "An error."} for kind in ("4XX", "5XX")},
    )
    app.state.service = service
    for module in (routes, events):
        app.include_router(module.router)
    app.mount(f"{ASSETS}samples", StaticFiles(directory=SAMPLES_FOLDER), name="samples")
    app.mount(ASSETS.rstrip("/"), StaticFiles(directory=ASSETS_FOLDER), name="assets")
    add_error_handlers(app)
    app.add_middleware(Gate, service=service, token=token)
    return app


@contextlib.asynccontextmanager
async def _follow_events(app: FastAPI) -> AsyncIterator[None]:
    service: LiveService = app.state.service

    async def follow() -> None:
        while True:
            service.note_events()
            await asyncio.sleep(1.0)

    task = asyncio.create_task(follow())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    service.close()
