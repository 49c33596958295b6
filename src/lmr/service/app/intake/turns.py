"""Turns: what is decoded in several threads goes on in the order in which it arrived, stream by stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Used from the event loop alone; keeps nothing of a stream that nobody waits for."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Future[None]] = {}

    @contextmanager
    def take(self, stream: str) -> Iterator[asyncio.Future[None]]:
        """Take the next turn of a stream; it has come when the future that is given is done.

        It is over at the end of the context, also after an error, but never before the turns that were taken earlier.
        """
        over = asyncio.get_running_loop().create_future()
        before = self._last.get(stream)
        self._last[stream] = over
        if before is None:
            before = asyncio.get_running_loop().create_future()
            before.set_result(None)
        try:
            yield before
        finally:
            if before.done():
                self._end(stream, over)
            else:
                before.add_done_callback(lambda _: self._end(stream, over))

    def _end(self, stream: str, over: asyncio.Future[None]) -> None:
        if not over.done():
            over.set_result(None)
        if self._last.get(stream) is over:
            del self._last[stream]
