"""FairPool: threads that work on requests piece by piece, so that a large request does not hold up small ones."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Generator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lmr.service.engine.requests import NotReady

Result = TypeVar("Result")


@dataclass(frozen=True)
class Piece:
    """The next piece of a request: the ``work`` of all its pieces up to this one, and the ``lane`` it needs."""

    work: float
    lane: int = 0


Pieces = Generator[Piece, None, Result]  # work that describes each of its pieces before it does it


class FairPool:
    """Lanes of threads. In each lane, the request with the least work so far, its next piece included, goes first.

    So a small request waits for the pieces that are being worked on, and never for the rest of a large one.
    """

    def __init__(self, *threads: int) -> None:
        self._lanes = [ThreadPoolExecutor(count, f"lmr-decode-{lane}") for lane, count in enumerate(threads)]
        self._waiting: list[list[tuple[float, int, Pieces[Any], Future[Any]]]] = [[] for _ in threads]  # heaps
        self._numbers, self._lock = itertools.count(), threading.Lock()

    def start(self, pieces: Pieces[Result]) -> Future[Result]:
        """Work on a request, at first on what comes before its first piece.

        Cancelling the future drops the request; a piece that is being worked on is finished.
        """
        future: Future[Result] = Future()
        self._queue(Piece(0.0), pieces, future)
        future.add_done_callback(self._drop)
        return future

    def close(self) -> None:
        """End the threads when they have finished their pieces; what waits is refused."""
        for lane in self._lanes:
            lane.shutdown(wait=False, cancel_futures=True)
        for future in [future for waiting in self._waiting for *_, future in waiting]:
            with suppress(InvalidStateError):
                future.set_exception(NotReady("The service has been stopped."))

    def _queue(self, piece: Piece, pieces: Pieces[Any], future: Future[Any]) -> None:
        with self._lock:
            if not future.done():
                self._lanes[piece.lane].submit(self._advance, piece.lane)
                heapq.heappush(self._waiting[piece.lane], (piece.work, next(self._numbers), pieces, future))

    def _drop(self, future: Future[Any]) -> None:
        with self._lock:
            for waiting in self._waiting:
                waiting[:] = [entry for entry in waiting if entry[-1] is not future]
                heapq.heapify(waiting)

    def _is_next(self, piece: Piece, lane: int, future: Future[Any]) -> bool:
        """Return whether a thread of a lane may go on with a request: no other one there has less work."""
        with self._lock:
            waiting = self._waiting[lane]
            return piece.lane == lane and not future.done() and not (waiting and waiting[0][0] <= piece.work)

    def _advance(self, lane: int) -> None:
        """Work on one piece, and on the next while its request goes first: to queue it would cost another thread.

        There is a call of this function for each request that waits.
        """
        with self._lock:
            if not self._waiting[lane]:  # it was dropped
                return
            *_, pieces, future = heapq.heappop(self._waiting[lane])
        with suppress(InvalidStateError):  # cancelled meanwhile
            try:
                while self._is_next(piece := next(pieces), lane, future):
                    pass
                self._queue(piece, pieces, future)
            except StopIteration as end:
                future.set_result(end.value)
            except BaseException as error:
                future.set_exception(error)
