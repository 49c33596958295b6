"""Turns are over in the order in which they were taken, whoever is ready first, and errors hold up nobody."""

from __future__ import annotations

import asyncio

import pytest

from lmr.service.app.intake.turns import Turns


async def work(turns: Turns, stream: str, number: int, ready: asyncio.Event, done: list[int], fails: bool) -> None:
    with turns.take(stream) as turn:
        await ready.wait()
        if fails:
            raise ValueError(number)
        await turn
        done.append(number)


async def run_backwards(turns: Turns, streams: str, failing: set[int]) -> list[int]:
    """Works on these streams, of which the last is ready first."""
    done: list[int] = []
    ready = [asyncio.Event() for _ in streams]
    works = [
        asyncio.create_task(work(turns, stream, number, ready[number], done, number in failing))
        for number, stream in enumerate(streams)
    ]
    for event in [None, *reversed(ready)]:
        if event is not None:
            event.set()
        for _ in range(5):
            await asyncio.sleep(0)
    await asyncio.gather(*works, return_exceptions=True)
    assert not turns._last
    return done


@pytest.mark.parametrize("failing", [set(), {0}, {1}, {2}, {0, 2}])
def test_one_stream_is_in_order(failing: set[int]) -> None:
    expected = [number for number in range(4) if number not in failing]
    assert asyncio.run(run_backwards(Turns(), "aaaa", failing)) == expected


def test_streams_do_not_wait_for_each_other() -> None:
    assert asyncio.run(run_backwards(Turns(), "abc", set())) == [2, 1, 0]
    done = asyncio.run(run_backwards(Turns(), "abab", set()))
    assert [number for number in done if number % 2] == [1, 3]
    assert [number for number in done if not number % 2] == [0, 2]


def test_cancelled_turn_is_over() -> None:
    async def run() -> list[int]:
        turns, done, never, ready = Turns(), list[int](), asyncio.Event(), asyncio.Event()
        ready.set()
        first = asyncio.create_task(work(turns, "a", 0, never, done, False))
        second = asyncio.create_task(work(turns, "a", 1, ready, done, False))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert not turns._last
        return done

    assert asyncio.run(run()) == [1]
