"""Reading ahead: the order, the bound, what is raised where, and that no thread is left."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lmr.images.ahead import ReadAhead


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def double_late(number: int) -> int:
    time.sleep(random.Random(number).random() / 300)
    return 2 * number


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_results_come_in_order(count: int, workers: int) -> None:
    with ReadAhead(range(count), double_late, ahead=5, workers=workers) as results:
        assert list(results) == [2 * number for number in range(count)]
        assert not results.has_more()
        assert list(results) == []


def test_number_of_results_ahead_is_limited() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    with ReadAhead(items(), double_late, ahead=4, workers=3) as results:
        for number, _ in enumerate(results):
            time.sleep(0.01)
            assert number + 1 <= len(taken) <= number + 1 + 4
    assert taken == list(range(20))


class Death(BaseException):
    """What no handler expects."""


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, Death])
@pytest.mark.parametrize("place", ["work", "items"])
def test_exceptions_are_raised_at_their_position(place: str, kind: type[BaseException]) -> None:
    def items() -> Iterator[int]:
        for number in range(9):
            if number == 5 and place == "items":
                raise kind("here")
            yield number

    def work(number: int) -> int:
        if number == 5 and place == "work":
            raise kind("here")
        return double_late(number)

    with ReadAhead(items(), work, ahead=4, workers=2) as results:
        assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
        assert results.has_more()
        with pytest.raises(kind, match="here"):
            next(results)


def test_a_caller_that_leaves_early_closes_the_items() -> None:
    closed: list[bool] = []

    def items() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.append(True)

    with ReadAhead(items(), double_late, ahead=4, workers=2) as results:
        assert next(results) == 0
    assert closed == [True]
    with suppress(Death), ReadAhead(items(), double_late, ahead=4, workers=2) as results:
        next(results)
        raise Death
    assert closed == [True, True]


def test_nothing_runs_while_it_is_held() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return double_late(number)

    with ReadAhead(range(30), work, ahead=2, workers=2) as results:
        for number, result in enumerate(results):
            assert result == 2 * number
            with results.hold():
                before = len(begun)
                time.sleep(0.002)
                assert len(begun) == before
    assert begun != []


def test_slow_items_are_told_to_end() -> None:
    ended, waiting = threading.Event(), threading.Event()
    told: list[bool] = []

    def items() -> Iterator[int]:
        yield 0
        waiting.set()
        told.append(ended.wait(10))

    with ReadAhead(items(), double_late, ahead=4, ended=ended) as results:
        assert next(results) == 0
        assert waiting.wait(10)
        assert not ended.is_set()
    assert told == [True]
