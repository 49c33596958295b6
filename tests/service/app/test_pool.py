"""Turns in a pool: the least work first, piece by piece, whatever else waits; dropping and closing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from lmr.service.app.pool import FairPool, Piece, Pieces
from lmr.service.engine.requests import NotReady
from service_maker import TIMEOUT


@pytest.fixture
def pool() -> Iterator[FairPool]:
    made = FairPool(1, 1)
    yield made
    made.close()


class Request:
    """A request of pieces of equal work, which note their names; it stops before the first one until it may go on."""

    def __init__(self, done: list[str], name: str, pieces: int, own: float, lane: int = 0) -> None:
        self.done, self.name, self.pieces, self.own, self.lane = done, name, pieces, own, lane
        self.begun, self.go = threading.Event(), threading.Event()

    def work(self) -> Pieces[str]:
        for number in range(self.pieces):
            yield Piece((number + 1) * self.own, self.lane)
            self.begun.set()
            assert self.go.wait(TIMEOUT)
            self.done.append(f"{self.name}{number}")
        return self.name


def test_small_requests_wait_for_one_piece_of_a_large_one(pool: FairPool) -> None:
    done: list[str] = []
    large, small, late = Request(done, "a", 3, 10.0), Request(done, "b", 2, 1.0), Request(done, "c", 1, 1.0)
    futures = [pool.start(large.work())]
    assert large.begun.wait(TIMEOUT)
    futures += [pool.start(one.work()) for one in (small, late)]
    for one in (large, small, late):
        one.go.set()
    assert [future.result(TIMEOUT) for future in futures] == ["a", "b", "c"]
    assert done == ["a0", "b0", "c0", "b1", "a1", "a2"]


def test_lanes_do_not_wait_for_each_other(pool: FairPool) -> None:
    done: list[str] = []
    costly, plain = Request(done, "a", 1, 100.0, lane=1), Request(done, "b", 1, 1.0)
    held = pool.start(costly.work())
    assert costly.begun.wait(TIMEOUT)
    plain.go.set()
    assert pool.start(plain.work()).result(TIMEOUT) == "b"
    costly.go.set()
    assert held.result(TIMEOUT) == "a"


def test_a_dropped_request_does_no_more_work(pool: FairPool) -> None:
    done: list[str] = []
    running, waiting, last = Request(done, "a", 2, 1.0), Request(done, "b", 1, 1.0), Request(done, "c", 1, 5.0)
    futures = [pool.start(one.work()) for one in (running, waiting, last)]
    assert running.begun.wait(TIMEOUT)
    assert futures[0].cancel()
    assert futures[1].cancel()
    for one in (running, waiting, last):
        one.go.set()
    assert futures[2].result(TIMEOUT) == "c"
    assert done == ["a0", "c0"]
    with pytest.raises(CancelledError):
        futures[0].result(0)


def test_what_waits_at_the_end_is_refused(pool: FairPool) -> None:
    done: list[str] = []
    running, waiting = Request(done, "a", 1, 1.0), Request(done, "b", 1, 1.0)
    futures = [pool.start(one.work()) for one in (running, waiting)]
    assert running.begun.wait(TIMEOUT)
    pool.close()
    with pytest.raises(NotReady):
        futures[1].result(TIMEOUT)
    running.go.set()
    assert futures[0].result(TIMEOUT) == "a"
