"""Rows: who has one, who makes room, and what a batch is promised."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


@given(
    rows=st.integers(1, 5),
    resident=st.integers(0, 5),
    busy=st.sets(st.sampled_from("abcde")),
    asked=st.permutations("abcdefgh"),
)
def test_every_stream_of_a_batch_gets_a_row(rows: int, resident: int, busy: set[str], asked: list[str]) -> None:
    residents = fill(rows, "abcde"[: min(resident, rows)])
    plan = residents.plan(busy)
    batch = [stream for stream in asked if plan.admit(stream)]
    for stream in batch:
        if residents.use(stream) is None:
            row = residents.take_row()
            if row is None:
                evicted = residents.pick_eviction(plan.pinned | set(batch), "")
                assert evicted is not None
                assert evicted not in busy
                residents.forget(evicted)
                row = residents.take_row()
            assert row is not None
            residents.add(stream, Resident(row, StreamRecord(stream), True))
    assert all(stream in residents for stream in batch)
    assert all(stream in residents for stream in set("abcde"[: min(resident, rows)]) & busy)
    kept = len(set("abcde"[: min(resident, rows)]) & busy)
    assert batch or kept == rows  # somebody is served unless every row is busy
