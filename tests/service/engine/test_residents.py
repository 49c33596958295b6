"""Rows: who has one, who makes room, and what a batch is promised."""

from __future__ import annotations

from lmr.service.engine.records import StreamRecord
from lmr.service.engine.residents import Resident, Residents


def fill(rows: int, streams: str) -> Residents:
    residents = Residents(rows)
    for stream in streams:
        row = residents.take_row()
        assert row is not None
        residents.add(stream, Resident(row, StreamRecord(stream), True))
    return residents


def test_least_recently_used_leaves_first_and_those_in_need_last() -> None:
    residents = fill(4, "abcd")
    residents.use("a")
    assert residents.pick_eviction("", "") == "b"
    assert residents.pick_eviction("b", "") == "c"
    assert residents.pick_eviction("", "bc") == "d"
    assert residents.pick_eviction("ad", "bc") == "b"
    assert residents.pick_eviction("abcd", "") is None
