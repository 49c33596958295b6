"""Changes that are put together are one change."""

from __future__ import annotations

from lmr.service.store.stored_types import (
    KeptAnswer,
    StoredEvent,
    StoredRecord,
    StoredState,
    StreamChange,
    Transaction,
)

ONE, TWO = StoredRecord("ok", 1, "one"), StoredRecord("watch", 2, "two")


def test_later_change_adds_to_the_earlier() -> None:
    first = StreamChange(ONE, StoredState(b"1"), {1: "a"}, [KeptAnswer("k", "", "")], fresh=True)
    both = first.add(StreamChange(TWO, None, {2: "b"}))
    assert both == StreamChange(TWO, StoredState(b"1"), {1: "a", 2: "b"}, [KeptAnswer("k", "", "")], fresh=True)
    assert first.add(StreamChange(state=StoredState(b"2"))).state == StoredState(b"2")


def test_deletion_makes_earlier_changes_void() -> None:
    assert StreamChange(ONE, steps={1: "a"}).add(StreamChange(fresh=True)) == StreamChange(fresh=True)


def test_transactions_are_put_together() -> None:
    one = Transaction({"a": StreamChange(ONE)}, [StoredEvent(1, "a", "e")])
    assert not Transaction()
    assert one
    one.extend(Transaction({"a": StreamChange(TWO), "b": StreamChange(ONE)}, [StoredEvent(2, "b", "f")]))
    assert {stream: change.record for stream, change in one.streams.items()} == {"a": TWO, "b": ONE}
    assert [event.number for event in one.events] == [1, 2]


def test_size_counts_states_notes_and_answers() -> None:
    state = StoredState(b"12345", "67", {"a": b"8", "b": None})
    change = StreamChange(ONE, state, {1: "ab"}, [KeptAnswer("k", "d", "cde")])
    assert Transaction({"a": change, "b": StreamChange()}).size == 8 + 2 + 3
