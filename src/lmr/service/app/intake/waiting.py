"""Wait for the engine without holding the event loop, and notice a client that has gone."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from fastapi import Request

from lmr.service.engine.engine import Engine
from lmr.service.engine.step_types import StepAnswer

Result = TypeVar("Result")


class ClientGone(Exception):
    """Nobody reads the answer."""


async def wait_for(future: Future[Result]) -> Result:
    """The result of a future of another thread; cancelling the task that waits leaves the future alone."""
    return await asyncio.shield(asyncio.wrap_future(future))


class ClientWatch:
    """Notices that the client of a request has gone, from ``begin`` to the end of the context."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._gone: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._gone is not None:
            self._gone.cancel()

    def begin(self) -> None:
        """The body has been read, so that nothing but the end of the connection can arrive."""
        self._gone = asyncio.ensure_future(_wait_until_gone(self._request))

    def check(self) -> None:
        """ClientGone if it has gone, so that nothing is asked of the engine."""
        if self._gone is not None and self._gone.done():
            raise ClientGone

    async def wait(self, engine: Engine, future: Future[StepAnswer]) -> StepAnswer:
        """The answer; if the client goes first, a request that still waits is dropped, so that nothing adapts."""
        answer = asyncio.wrap_future(future)  # never cancelled here, as that would cancel the engine's future
        waited: set[asyncio.Future[Any]] = {answer} if self._gone is None else {answer, self._gone}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left to be told
        engine.drop(future)
        raise ClientGone


async def _wait_until_gone(request: Request) -> None:
    """Returns when the connection is closed."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
