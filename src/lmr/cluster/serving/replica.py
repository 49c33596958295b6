"""StreamReplica: the engine and the app of the service on one machine, as one replica of many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI

from lmr.apps.serve import ServingPlan
from lmr.cluster.nodes import describe_mismatch, digest_method, list_versions
from lmr.cluster.serving.remote_store import RemoteStore
from lmr.core.errors import LmrError
from lmr.service.app.app import make_app
from lmr.service.app.log import write_json_log
from lmr.service.app.service import LiveService


@dataclass(frozen=True)
class ReplicaPlan:
    """The plan of a replica: its service, and the versions, also of a method's file, that all replicas must have."""

    serving: ServingPlan
    token: str | None
    log_level: str
    versions: Mapping[str, str]


class StreamReplica:
    """A replica; Ray Serve creates it, gives it requests, and waits for their answers before it ends it."""

    async def __init__(self, plan: ReplicaPlan, store: RemoteStore) -> None:  # type: ignore[misc]  # awaited by Serve
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(write_json_log(plan.log_level))
        self._token = plan.token
        self._service = LiveService(plan.serving.settings)
        await asyncio.to_thread(self._load, plan, store)

    def _load(self, plan: ReplicaPlan, store: RemoteStore) -> None:
        if wrong := describe_mismatch(list_versions() | digest_method(plan.serving.method), plan.versions):
            raise LmrError(f"A node has {wrong}; replicas must not differ. Have the same on every node.")
        backbone, method = plan.serving.load()
        engine = plan.serving.start_engine(method, store)
        self._stack.callback(engine.close)
        self._service.install(engine, backbone.preprocess, backbone.name, backbone.facts)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self._service, token=self._token)

    async def check_health(self) -> None:
        """Check the replica; Serve calls this regularly. A store that cannot be reached does not end a replica."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._service.engine.recount)

    async def __del__(self) -> None:
        await asyncio.to_thread(self._stack.close)
