"""The fence: what rests on an old epoch is never written, and a key is applied once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lmr.service.store.fenced_store import FencedStore
from lmr.service.store.store import Store
from lmr.service.store.stored_types import (
    Claim,
    KeptAnswer,
    StoredEvent,
    StoredRecord,
    StoredState,
    StreamChange,
    Transaction,
)

IDENTITY = {"model": "pocket"}


def make_record(text: str) -> StoredRecord:
    return StoredRecord("ok", 1, text)


def make_change(text: str, *answers: KeptAnswer) -> StreamChange:
    return StreamChange(make_record(text), StoredState(text.encode()), answers=list(answers))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FencedStore]:
    made = FencedStore(tmp_path / "s.sqlite", IDENTITY)
    yield made
    made.close()


def test_claims_raise_the_epoch_of_their_stream_alone(store: FencedStore) -> None:
    assert store.claim("a") == Claim(None, 1)
    assert store.claim("a") == Claim(None, 2)
    assert store.claim("b") == Claim(None, 1)
    assert store.commit(Transaction({"a": make_change("a1")}, epochs={"a": 2})) == {}
    assert store.claim("a") == Claim(make_record("a1"), 3)


def test_commit_of_an_old_epoch_is_refused_and_the_others_are_written(store: FencedStore) -> None:
    for stream in "ab":
        store.claim(stream)
    store.claim("a")  # somebody else
    events = [StoredEvent(1, "a", "ea"), StoredEvent(2, "b", "eb"), StoredEvent(3, "", "e")]
    late = Transaction({"a": make_change("old"), "b": make_change("b1")}, events, {"a": 1, "b": 1})
    assert store.commit(late) == {"a": None}
    assert store.read_record("a") is None
    assert store.read_state("a") is None
    assert store.read_record("b") == make_record("b1")
    assert store.read_events() == ["eb", "e"]


def test_commit_without_a_claim_is_refused(store: FencedStore) -> None:
    assert store.commit(Transaction({"a": make_change("x")})) == {"a": None}
    store.claim("b")
    assert store.commit(Transaction({"b": make_change("x")})) == {"b": None}
    assert store.list_records("", 10) == []


def test_what_was_only_read_is_confirmed_or_refused(store: FencedStore) -> None:
    store.claim("a")
    assert store.commit(Transaction(epochs={"a": 1})) == {}
    store.claim("a")
    assert store.commit(Transaction(epochs={"a": 1})) == {"a": None}


def test_request_that_was_applied_is_refused_with_its_answer(store: FencedStore) -> None:
    store.claim("a")
    kept = KeptAnswer("k", "d", "first")
    assert store.commit(Transaction({"a": make_change("a1", kept)}, epochs={"a": 1})) == {}
    again = Transaction({"a": make_change("a2", KeptAnswer("k", "d", "second"))}, epochs={"a": 1})
    assert store.commit(again) == {"a": kept}
    assert store.read_record("a") == make_record("a1")
    on_top = Transaction({"a": make_change("a3", KeptAnswer("other", "d", "third"))}, epochs={"a": 1})
    assert store.commit(on_top) == {"a": None}  # it rests on the step that was refused
    assert store.read_record("a") == make_record("a1")


def test_epochs_survive_a_restart_and_the_stream(tmp_path: Path) -> None:
    first = FencedStore(tmp_path / "s.sqlite", IDENTITY)
    assert first.claim("a").epoch == 1
    first.commit(Transaction({"a": make_change("a1")}, epochs={"a": 1}))
    assert first.commit(Transaction({"a": StreamChange(fresh=True)}, epochs={"a": 1})) == {}
    first.close()
    second = FencedStore(tmp_path / "s.sqlite", IDENTITY)
    assert second.claim("a") == Claim(None, 2)
    assert second.commit(Transaction({"a": make_change("late")}, epochs={"a": 1})) == {"a": None}
    second.close()


def test_events_of_two_engines_do_not_replace_each_other(store: FencedStore) -> None:
    for content in ("one", "two"):
        store.commit(Transaction(events=[StoredEvent(7, "", content)]))
    assert store.read_events() == ["one", "two"]


def test_commit_that_is_made_twice_leaves_one_event(store: FencedStore) -> None:
    """Ray makes a call again if the store died before its answer was out; a request without a key is not known."""
    store.claim("a")
    change = Transaction({"a": make_change("a1")}, [StoredEvent(7, "a", "rolled back")], {"a": 1})
    assert [store.commit(change), store.commit(change)] == [{}, {}]
    assert store.read_events() == ["rolled back"]


def test_file_is_a_store_for_one_engine_as_well(tmp_path: Path) -> None:
    fenced = FencedStore(tmp_path / "s.sqlite", IDENTITY)
    fenced.claim("a")
    fenced.commit(Transaction({"a": make_change("a1")}, epochs={"a": 1}))
    fenced.close()
    plain = Store(tmp_path / "s.sqlite", IDENTITY)
    assert plain.claim("a") == Claim(make_record("a1"))
    assert plain.commit(Transaction({"a": make_change("a2")})) == {}
    plain.close()
    fenced = FencedStore(tmp_path / "s.sqlite", IDENTITY)
    assert fenced.claim("a") == Claim(make_record("a2"), 2)
    fenced.close()
