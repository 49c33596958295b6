"""The model, the probes of an orchestrator, and the metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from lmr.service.app.http_errors import pick_errors
from lmr.service.app.live_service import find_service
from lmr.version import __version__

router = APIRouter(tags=["service"])


class ModelCard(BaseModel):
    """What serves: the model, its classes, the method with all its values, and the service's limits."""

    model: str
    classes: list[str]
    spec: str
    watch: str = Field(description='The settings of the watch, or "off".')
    facts: dict[str, str] = Field(description="About the model: format, architecture, resolution.")
    settings: dict[str, Any]
    version: str


@router.get("/v1/model", responses=pick_errors(401, 503), summary="The model and its classes")
async def get_model(request: Request) -> ModelCard:
    """What serves, and within which limits."""
    parts = find_service(request).parts
    return ModelCard(
        model=parts.model,
        classes=parts.engine.names,
        spec=parts.engine.method.spec,
        watch=parts.watch,
        facts=parts.facts,
        settings=asdict(parts.engine.settings),
        version=__version__,
    )


@router.get("/healthz", summary="Whether the process is alive")
async def get_health() -> dict[str, str]:
    """200 as long as the process answers. For a liveness probe; needs no token."""
    return {"status": "alive"}


@router.get("/readyz", responses=pick_errors(503), summary="Whether requests are served")
async def get_readiness(request: Request) -> Response:
    """200 when requests are served, otherwise 503 with the reason; needs no token.

    "degraded" is 200 too: images are answered, and nothing adapts, because the store cannot be written.
    """
    now = find_service(request).look()
    body = {"status": now.state, **({"reason": now.reason} if now.reason else {})}
    return JSONResponse(body, 200 if now.state in ("ready", "degraded") else 503)


@router.get("/metrics", response_class=Response, responses=pick_errors(401), summary="Metrics for Prometheus")
async def get_metrics(request: Request) -> Response:
    """Requests, images, steps, queue, batches, commits, streams by health, rollbacks and the store."""
    return Response(find_service(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
