"""The store, in SQLite and in PostgreSQL: what is committed is there, whole, for whom it belongs to.

What a store for one engine does is tested with all stores, the fence with those that engines share: what rests on an
old epoch is never written, and a key is applied once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_maker import SharedSqliteStore
from lmr import LmrError
from lmr.service.store import sql_store
from lmr.service.store.addresses import StateStore, open_store
from lmr.service.store.sqlite_store import SqliteStore
from lmr.service.store.stored_types import (
    Claim,
    KeptAnswer,
    StoredRecord,
    StoredState,
    StoreError,
    StreamChange,
    Transaction,
)

IDENTITY = {"model": "pocket", "classes or prompts": "abc", "method": "lmr(lr=0.001)"}
SHARED = ["shared sqlite", "postgres"]
Opener = Callable[[dict[str, str]], StateStore]


@pytest.fixture
def opener(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Opener:
    """Opens a store of a kind, the same at every call."""
    if "sqlite" in kind:
        path = tmp_path / "deep" / "lmr.sqlite"
        return lambda identity: (SharedSqliteStore if "shared" in kind else SqliteStore)(path, identity)
    if kind == "memory":
        return lambda identity: SqliteStore(None, identity)
    server = request.getfixturevalue("postgres")
    address = server.make_database()
    return lambda identity: open_store(address, identity)  # type: ignore[return-value]


@pytest.fixture
def store(opener: Opener) -> Iterator[StateStore]:
    made = opener(IDENTITY)
    yield made
    made.close()


every_store = pytest.mark.parametrize("kind", ["sqlite", "memory", *SHARED])
lasting_store = pytest.mark.parametrize("kind", ["sqlite", "postgres"])
shared_store = pytest.mark.parametrize("kind", SHARED)


def make_change(text: str = "r", *, health: str = "ok", change: int = 1, **values: object) -> StreamChange:
    return StreamChange(StoredRecord(health, change, text), **values)  # type: ignore[arg-type]


def write(store: StateStore, transaction: Transaction, keys: int = 64) -> None:
    """Commit what an engine does that has just claimed the streams."""
    transaction.epochs = {stream: store.claim(stream).epoch for stream in transaction.streams}
    assert store.commit(transaction, keys) == {}


def read_text(store: StateStore, stream: str) -> str | None:
    found = store.read_record(stream)
    return None if found is None else found.content


def read_state(store: StateStore, stream: str) -> StoredState | None:
    return store.claim(stream).state


def list_texts(store: StateStore, after: str, limit: int) -> list[str]:
    return [record.content for _, record in store.list_records(after, limit)]


@every_store
def test_what_is_committed_is_read(store: StateStore) -> None:
    state = StoredState(b"tensors", "{}", {"waiting/0": b"image", "tally": b"u"})
    change = make_change("r1", state=state, steps={1: "n1"}, answers=[KeptAnswer("k", "d", "a")])
    write(store, Transaction({"cam": change}, [("cam", "e5"), ("", "e6")]))
    assert read_text(store, "cam") == "r1"
    assert read_state(store, "cam") == state
    assert store.read_steps("cam") == store.read_steps("cam", 1) == ["n1"]
    assert store.read_steps("cam", 2) == store.read_steps("x") == []
    assert store.read_answer("cam", "k") == KeptAnswer("k", "d", "a")
    assert (store.read_events("cam"), store.read_events("")) == (["e5"], ["e6"])
    assert (store.read_record("x"), store.claim("x").record, store.read_answer("x", "k")) == (None, None, None)


@every_store
def test_parts_are_replaced_kept_and_removed(store: StateStore) -> None:
    write(store, Transaction({"cam": make_change(state=StoredState(b"1", "w", {"a": b"a1", "b": b"b1", "c": b"c1"}))}))
    write(store, Transaction({"cam": make_change(state=StoredState(b"2", "v", {"a": None, "b": b"b2"}))}))
    assert read_state(store, "cam") == StoredState(b"2", "v", {"b": b"b2", "c": b"c1"})


@every_store
def test_fresh_change_deletes_all_that_was_there(store: StateStore) -> None:
    full = make_change(state=StoredState(b"1", "", {"a": b"a"}), steps={1: "n"}, answers=[KeptAnswer("k", "d", "a")])
    other = make_change("o", state=StoredState(b"9"))
    events = [("cam", "old"), ("other", "kept")]
    write(store, Transaction({"cam": full, "other": other}, events))
    write(store, Transaction({"cam": StreamChange(fresh=True)}, [("cam", "deleted")]))
    assert store.read_record("cam") is None
    assert (store.read_events("cam"), store.read_events("other")) == (["deleted"], ["kept"])
    assert list_texts(store, "", 10) == ["o"]
    write(store, Transaction({"cam": make_change("new", state=StoredState(b"2"))}))
    assert read_state(store, "cam") == StoredState(b"2")
    assert store.read_steps("cam") == []
    assert store.read_answer("cam", "k") is None
    assert read_state(store, "other") == StoredState(b"9")


@every_store
def test_bounds_hold(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_store, "MOST_STEPS", 20)
    monkeypatch.setattr(sql_store, "MOST_EVENTS", 20)
    for seq in range(1, 24):
        change = make_change(steps={seq: f"n{seq}"}, answers=[KeptAnswer(f"k{seq}", "d", "a")])
        write(store, Transaction({"cam": change}), keys=3)
    assert store.read_steps("cam") == [f"n{seq}" for seq in range(4, 24)]
    assert store.read_answer("cam", "k20") is None
    assert store.read_answer("cam", "k21") is not None
    write(store, Transaction(events=[("", str(number)) for number in range(20 + 7)]))
    found = store.read_events("", limit=50)
    assert (len(found), found[0]) == (20, "7")


@every_store
def test_streams_are_listed_by_name_and_counted_by_health(store: StateStore) -> None:
    health = {"a": "ok", "c": "watch", "b": "ok", "ä": "paused"}
    write(store, Transaction({name: make_change(f"r-{name}", health=word) for name, word in health.items()}))
    assert list_texts(store, "", 3) == ["r-a", "r-b", "r-c"]
    assert list_texts(store, "b", 3) == ["r-c", "r-ä"]
    assert [name for name, _ in store.list_records("b", 3)] == ["c", "ä"]
    found = store.summarise()
    assert (found.by_health, found.last_change) == ({"ok": 2, "watch": 1, "paused": 1}, 1)


@every_store
def test_failed_commit_leaves_nothing(store: StateStore) -> None:
    write(store, Transaction({"cam": make_change("r1", state=StoredState(b"1"))}))
    lost = KeptAnswer(None, "d", "a")  # type: ignore[arg-type]
    wrong = make_change("r2", state=StoredState(b"2"), answers=[lost])
    with pytest.raises(StoreError):
        write(store, Transaction({"cam": wrong}))
    assert read_text(store, "cam") == "r1"
    assert read_state(store, "cam") == StoredState(b"1")
    write(store, Transaction({"cam": make_change("r3")}))
    assert list_texts(store, "", 10) == ["r3"]


@shared_store
def test_claims_raise_the_epoch_of_their_stream_alone(store: StateStore) -> None:
    assert store.claim("a") == Claim(None, 1)
    assert store.claim("a") == Claim(None, 2)
    assert store.claim("b") == Claim(None, 1)
    assert store.commit(Transaction({"a": make_change("a1")}, epochs={"a": 2})) == {}
    assert (store.claim("a").record, store.claim("a").epoch) == (StoredRecord("ok", 1, "a1"), 4)


@shared_store
def test_commit_of_an_old_epoch_is_refused_and_the_others_are_written(store: StateStore) -> None:
    for stream in "ab":
        store.claim(stream)
    store.claim("a")  # somebody else
    events = [("a", "ea"), ("b", "eb"), ("", "e")]
    late = Transaction({"a": make_change("old"), "b": make_change("b1")}, events, {"a": 1, "b": 1})
    assert store.commit(late) == {"a": None}
    assert store.read_record("a") is None
    assert store.read_record("b") == StoredRecord("ok", 1, "b1")
    assert [store.read_events(stream) for stream in ("a", "b", "")] == [[], ["eb"], ["e"]]


@shared_store
def test_what_was_only_read_is_confirmed_or_refused(store: StateStore) -> None:
    store.claim("a")
    assert store.commit(Transaction(epochs={"a": 1})) == {}
    store.claim("a")
    assert store.commit(Transaction(epochs={"a": 1})) == {"a": None}


@shared_store
def test_request_that_was_applied_is_refused_with_its_answer(store: StateStore) -> None:
    store.claim("a")
    kept = KeptAnswer("k", "d", "first")
    assert store.commit(Transaction({"a": make_change("a1", answers=[kept])}, epochs={"a": 1})) == {}
    again = Transaction({"a": make_change("a2", answers=[KeptAnswer("k", "d", "second")])}, epochs={"a": 1})
    assert store.commit(again) == {"a": kept}
    assert store.read_record("a") == StoredRecord("ok", 1, "a1")
    on_top = Transaction({"a": make_change("a3", answers=[KeptAnswer("other", "d", "third")])}, epochs={"a": 1})
    assert store.commit(on_top) == {"a": None}  # it rests on the step that was refused
    assert store.read_record("a") == StoredRecord("ok", 1, "a1")


@shared_store
def test_epochs_survive_a_restart_and_the_stream(opener: Opener) -> None:
    first = opener(IDENTITY)
    assert first.claim("a").epoch == 1
    first.commit(Transaction({"a": make_change("a1")}, epochs={"a": 1}))
    assert first.commit(Transaction({"a": StreamChange(fresh=True)}, epochs={"a": 1})) == {}
    first.close()
    second = opener(IDENTITY)
    assert second.claim("a") == Claim(None, 2)
    assert second.commit(Transaction({"a": make_change("late")}, epochs={"a": 1})) == {"a": None}
    second.close()


@lasting_store
def test_store_survives_closing_and_knows_its_own(opener: Opener) -> None:
    first = opener(IDENTITY)
    write(first, Transaction({"cam": make_change("r", state=StoredState(b"1")), "b": make_change("b")}))
    assert first.summarise().size > 0
    first.close()
    again = opener(IDENTITY)
    assert read_state(again, "cam") == StoredState(b"1")
    again.close()
    for key in IDENTITY:
        with pytest.raises(LmrError, match=f"holds states of another {key}: .*, not other. Serve that one, or give"):
            opener(IDENTITY | {key: "other"})
    opener(IDENTITY).close()  # a refusal leaves no lock


@shared_store
def test_engines_that_commit_the_same_streams_do_not_wait_for_each_other_forever(store: StateStore) -> None:
    """Rows are locked in the order of the names, whatever the order of a transaction."""
    names = [f"cam-{number}" for number in range(6)]
    refusals: list[int] = []

    def work(order: list[str]) -> None:
        for _ in range(10):
            epochs = {name: store.claim(name).epoch for name in order}
            refusals.append(len(store.commit(Transaction({name: make_change() for name in order}, epochs=epochs))))

    threads = [threading.Thread(target=work, args=(order,)) for order in (names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(refusals) == 20
    assert set(refusals) <= set(range(7))
    assert [name for name, _ in store.list_records("", 9)] == names
