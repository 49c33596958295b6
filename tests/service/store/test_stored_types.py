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
    one = Transaction({"a": StreamChange(ONE)}, [StoredEvent("a", "e")])
    assert not Transaction()
    assert one
    one.extend(Transaction({"a": StreamChange(TWO), "b": StreamChange(ONE)}, [StoredEvent("b", "f")]))
    assert {stream: change.record for stream, change in one.streams.items()} == {"a": TWO, "b": ONE}
    assert [event.content for event in one.events] == ["e", "f"]


def test_changes_of_an_earlier_claim_are_dropped() -> None:
    pending = Transaction({"a": StreamChange(ONE), "b": StreamChange(ONE)}, epochs={"a": 1, "b": 1})
    dropped = pending.extend(Transaction({"a": StreamChange(TWO)}, epochs={"a": 2}))
    assert {stream: change.record for stream, change in dropped.streams.items()} == {"a": ONE}
    assert {stream: change.record for stream, change in pending.streams.items()} == {"a": TWO, "b": ONE}
    assert pending.epochs == {"a": 2, "b": 1}
