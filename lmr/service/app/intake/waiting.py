"""Wait for the engine without holding the event loop, and notice a client that has gone."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import Request

from lmr.service.engine.engine import Engine
from lmr.service.engine.step_types import StepAnswer

Result = TypeVar("Result")


class ClientGone(Exception):
    """Nobody reads the answer."""


async def wait_for(future: Future[Result]) -> Result:
    """The result of a future of another thread; cancelling the task that waits leaves the future alone."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def wait_while_connected(request: Request, engine: Engine, future: Future[StepAnswer]) -> StepAnswer:
    """The answer; if the client goes first, a request that still waits is dropped, so that nothing adapts."""
    answer = asyncio.wrap_future(future)  # never cancelled here, as that would cancel the engine's future
    gone = asyncio.ensure_future(_wait_until_gone(request))
    both: set[asyncio.Future[Any]] = {answer, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if answer.done():
        return answer.result()
    answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left to be told of it
    engine.drop(future)
    raise ClientGone


async def _wait_until_gone(request: Request) -> None:
    """Returns when the connection is closed. The body was read before, so nothing else can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
