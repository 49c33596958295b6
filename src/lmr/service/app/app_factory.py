"""make_app: the service as an ASGI app."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles

from lmr.service.app.http_errors import add_error_handlers
from lmr.service.app.inference import inference_routes
from lmr.service.app.intake.early_refusal import EarlyRefusal
from lmr.service.app.intake.waiting import ClientGone
from lmr.service.app.live_service import LiveService, Preprocess
from lmr.service.app.request_gate import ASSETS, Gate
from lmr.service.app.routes import event_routes, image_routes, page_routes, status_routes, stream_routes
from lmr.service.engine.engine import Engine
from lmr.service.page import ASSETS_FOLDER
from lmr.version import __version__

_DESCRIPTION = """\
Each stream of images has an adaptive state of its own. A request with images is one step of its stream: it adapts on
them and answers them. Errors have one form, {"error": {"code": ..., "message": ...}}.
With a token, send the header "Authorization: Bearer TOKEN"."""
_GONE = 499  # what logs and metrics call a request whose client has gone; nobody receives it


def make_app(engine: Engine, preprocess: Preprocess, model: str, *, token: str | None = None) -> FastAPI:
    """An app that serves a started engine. ``preprocess`` is that of the backbone, ``model`` its name.

    Without ``token`` only requests to localhost are answered.
    """
    service = LiveService(engine.settings)
    service.install(engine, preprocess, model)
    return make_service_app(service, token=token)


def make_service_app(service: LiveService, *, token: str | None = None) -> FastAPI:
    """An app around a service, which may still be loading its model."""
    app = FastAPI(
        title="lmr serve", version=__version__, description=_DESCRIPTION, docs_url=None, redoc_url=None,
        lifespan=_live,
    )  # fmt: skip
    app.state.service = service
    for module in (image_routes, stream_routes, event_routes, status_routes, inference_routes, page_routes):
        app.include_router(module.router)
    app.mount(ASSETS.rstrip("/"), StaticFiles(directory=ASSETS_FOLDER), name="assets")
    add_error_handlers(app)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_middleware(EarlyRefusal, service=service)
    app.add_middleware(Gate, token=token, count=service.metrics.add_request)
    return app


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=_GONE)


@contextlib.asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    """While the app runs, events are counted and logged as they happen."""
    service: LiveService = app.state.service
    task = asyncio.create_task(_follow_events(service))
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    service.close()


async def _follow_events(service: LiveService) -> None:
    while True:
        service.note_events()
        await asyncio.sleep(1.0)
