"""Read the body of a request while it arrives: within its size, within its time, and not too many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request

from lmr.service.app.http_errors import HttpProblem
from lmr.service.engine.step_types import QueueFull

_AT_ONCE = 32  # bodies of the largest size that may be in memory together


class BodyReader:
    """Reads bodies of at most ``limit`` bytes; together they take at most 32 times as much."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0  # bytes

    @asynccontextmanager
    async def read(self, request: Request, seconds: float) -> AsyncIterator[bytes]:
        """The whole body, within so many seconds. It counts as held until the context ends."""
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self.limit:
            raise self._refuse_size()
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    self.held += len(chunk)
                    if len(body) > self.limit:
                        raise self._refuse_size()
                    if self.held > _AT_ONCE * self.limit:
                        raise QueueFull("The service holds as many bodies as it may; send this one again.", 1.0)
            yield bytes(body)
        except TimeoutError as error:
            words = f"The body did not arrive within {seconds:g} seconds; nothing was adapted."
            raise HttpProblem(504, "deadline_passed", words, {"Connection": "close"}) from error
        finally:
            self.held -= len(body)

    def _refuse_size(self) -> HttpProblem:
        words = (
            f"The body has more than {self.limit:,} bytes, the limit of --max-body; send fewer or smaller images, or "
            "raise it for the state of a stream."
        )
        return HttpProblem(413, "body_too_large", words, {"Connection": "close"})
