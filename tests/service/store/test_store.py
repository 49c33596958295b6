"""The store: what is committed is there, whole, for whom it belongs to."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmr.core.errors import LmrError
from lmr.service.store.store import MOST_EVENTS, MOST_STEPS, Store
from lmr.service.store.stored_types import (
    DamagedText,
    KeptAnswer,
    StoredEvent,
    StoredRecord,
    StoredState,
    StreamChange,
    Transaction,
)

IDENTITY = {"model": "pocket", "classes or prompts": "abc", "method": "lmr(lr=0.001)"}


def make_change(text: str = "r", *, health: str = "ok", change: int = 1, **values: object) -> StreamChange:
    return StreamChange(StoredRecord(health, change, text), **values)  # type: ignore[arg-type]


def read_text(store: Store, stream: str) -> str | None:
    found = store.read_record(stream)
    return None if found is None else found.content


def list_texts(store: Store, after: str, limit: int) -> list[str]:
    return [record.content for _, record in store.list_records(after, limit)]


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "deep" / "lmr.sqlite" if request.param == "file" else None, IDENTITY)
    yield made
    made.close()


def test_what_is_committed_is_read(store: Store) -> None:
    state = StoredState(b"tensors", "{}", {"canary/0": b"image", "undo": b"u"})
    change = make_change("r1", state=state, steps={1: "n1"}, answers=[KeptAnswer("k", "d", "a")])
    store.commit(Transaction({"cam": change}, [StoredEvent(5, "cam", "e5"), StoredEvent(6, "", "e6")]))
    assert read_text(store, "cam") == "r1"
    assert store.read_state("cam") == state
    assert store.read_step("cam", 1) == "n1"
    assert store.read_steps("cam") == ["n1"]
    assert store.read_answer("cam", "k") == KeptAnswer("k", "d", "a")
    assert store.read_events() == ["e5", "e6"]
    assert store.read_events("cam") == ["e5"]
    assert store.find_last_change() == 6
    for found in (store.read_record("x"), store.read_state("x"), store.read_step("x", 1), store.read_answer("x", "k")):
        assert found is None


def test_parts_are_replaced_kept_and_removed(store: Store) -> None:
    store.commit(Transaction({"cam": make_change(state=StoredState(b"1", "w", {"a": b"a1", "b": b"b1", "c": b"c1"}))}))
    store.commit(Transaction({"cam": make_change(state=StoredState(b"2", "v", {"a": None, "b": b"b2"}))}))
    assert store.read_state("cam") == StoredState(b"2", "v", {"b": b"b2", "c": b"c1"})


def test_fresh_change_deletes_all_that_was_there(store: Store) -> None:
    full = make_change(state=StoredState(b"1", "", {"a": b"a"}), steps={1: "n"}, answers=[KeptAnswer("k", "d", "a")])
    other = make_change("o", state=StoredState(b"9"))
    events = [StoredEvent(1, "cam", "old"), StoredEvent(2, "other", "kept")]
    store.commit(Transaction({"cam": full, "other": other}, events))
    store.commit(Transaction({"cam": StreamChange(fresh=True)}, [StoredEvent(3, "cam", "deleted")]))
    assert store.read_record("cam") is None
    assert (store.read_events("cam"), store.read_events("other")) == (["deleted"], ["kept"])
    assert list_texts(store, "", 10) == ["o"]
    store.commit(Transaction({"cam": make_change("new", state=StoredState(b"2"))}))
    assert store.read_state("cam") == StoredState(b"2")
    assert store.read_steps("cam") == []
    assert store.read_answer("cam", "k") is None
    assert store.read_state("other") == StoredState(b"9")


def test_bounds_hold(store: Store) -> None:
    for seq in range(1, MOST_STEPS + 4):
        change = make_change(steps={seq: f"n{seq}"}, answers=[KeptAnswer(f"k{seq}", "d", "a")])
        store.commit(Transaction({"cam": change}), keys=3)
    assert store.read_steps("cam") == [f"n{seq}" for seq in range(4, MOST_STEPS + 4)]
    assert store.read_answer("cam", f"k{MOST_STEPS}") is None
    assert store.read_answer("cam", f"k{MOST_STEPS + 1}") is not None
    store.commit(Transaction(events=[StoredEvent(number, "", str(number)) for number in range(MOST_EVENTS + 7)]))
    found = store.read_events(limit=2 * MOST_EVENTS)
    assert (len(found), found[0]) == (MOST_EVENTS, "7")


def test_no_keys_are_kept_where_none_may_be(store: Store) -> None:
    store.commit(Transaction({"cam": make_change(answers=[KeptAnswer("k", "d", "a")])}), keys=0)
    assert store.read_answer("cam", "k") is None


def test_streams_are_listed_by_name_and_counted_by_health(store: Store) -> None:
    health = {"a": "ok", "c": "watch", "b": "ok", "ä": "paused"}
    store.commit(Transaction({name: make_change(f"r-{name}", health=word) for name, word in health.items()}))
    assert list_texts(store, "", 3) == ["r-a", "r-b", "r-c"]
    assert list_texts(store, "b", 3) == ["r-c", "r-ä"]
    assert [name for name, _ in store.list_records("b", 3)] == ["c", "ä"]
    assert store.count_health() == {"ok": 2, "watch": 1, "paused": 1}


def test_failed_commit_leaves_nothing(store: Store) -> None:
    store.commit(Transaction({"cam": make_change("r1", state=StoredState(b"1"))}))
    wrong = make_change("r2", state=StoredState(b"2"), steps={object(): "n"})  # the last that is written
    with pytest.raises(sqlite3.Error):
        store.commit(Transaction({"cam": wrong, "new": make_change()}))
    assert read_text(store, "cam") == "r1"
    assert store.read_state("cam") == StoredState(b"1")
    store.commit(Transaction({"cam": make_change("r3")}))
    assert list_texts(store, "", 10) == ["r3"]


def test_reading_does_not_wait_for_writing(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite", IDENTITY)
    store.commit(Transaction({"cam": make_change("old")}))
    with store._writing:
        store._writer.execute("BEGIN IMMEDIATE")
        store._writer.execute("UPDATE streams SET record = 'new'")
        assert read_text(store, "cam") == "old"
        store._writer.execute("ROLLBACK")
    store.close()


def test_store_survives_closing_and_knows_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    first = Store(path, IDENTITY)
    first.commit(Transaction({"cam": make_change("r", state=StoredState(b"1"))}))
    assert first.measure_bytes() > 0
    first.close()
    again = Store(path, IDENTITY)
    assert again.read_state("cam") == StoredState(b"1")
    assert again._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert again._writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    again.close()
    for key in IDENTITY:
        with pytest.raises(LmrError, match=f"holds states of another {key}: .*, not other. Serve that one, or give"):
            Store(path, IDENTITY | {key: "other"})
    Store(path, IDENTITY).close()  # a refusal leaves no lock


def test_other_files_and_formats_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a database, but long enough to look at " * 9)
    with pytest.raises(LmrError, match=r"Cannot use the store .* not a database"):
        Store(text, IDENTITY)
    foreign = tmp_path / "foreign"
    with sqlite3.connect(foreign) as made:
        made.execute("CREATE TABLE things (x)")
    made.close()
    with pytest.raises(LmrError, match="not a store of lmr"):
        Store(foreign, IDENTITY)
    newer = tmp_path / "newer"
    Store(newer, IDENTITY).close()
    with sqlite3.connect(newer) as made:
        made.execute("UPDATE facts SET value = '99' WHERE name = 'version'")
    made.close()
    with pytest.raises(LmrError, match="has format 99, this lmr reads 2; use the lmr that wrote it"):
        Store(newer, IDENTITY)
    (tmp_path / "file").write_text("")
    with pytest.raises(LmrError, match="Cannot use the folder"):
        Store(tmp_path / "file" / "s.sqlite", IDENTITY)


def test_second_process_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite", IDENTITY)
    script = (
        "import sys; from pathlib import Path; from lmr.service.store.store import Store\n"
        "try: Store(Path(sys.argv[1]), {})\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(store.path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("Another process uses the store")
    store.close()


@pytest.mark.parametrize("change", ["content = x'00'", "watch = watch || ' '", "watch = x'ff'", "content = 5"])
def test_damaged_state_is_noticed(store: Store, change: str) -> None:
    store.commit(Transaction({"cam": make_change(state=StoredState(b"tensors", "{}"))}))
    store._writer.execute(f"UPDATE states SET {change}")
    with pytest.raises(DamagedText, match="state of stream 'cam' does not have its checksum"):
        store.read_state("cam")


@pytest.mark.parametrize("damage", ["{0} || 'x'", "substr({0}, 2)", "CAST(x'ff' || {0} AS TEXT)", "x'00'", "5", "''"])
def test_damaged_texts_are_noticed_and_fail_no_other(store: Store, damage: str) -> None:
    values = {"steps": {1: "n1", 2: "n2"}, "answers": [KeptAnswer("k", "d", "a"), KeptAnswer("l", "d", "b")]}
    store.commit(Transaction({"bad": make_change("r1", health="watch", **values), "good": make_change("r2")}))
    store.commit(Transaction(events=[StoredEvent(5, "bad", "e5"), StoredEvent(6, "bad", "e6")]))
    for table, column, where in (
        ("streams", "record", "name = 'bad'"),
        ("steps", "note", "seq = 1"),
        ("answers", "content", "key = 'k'"),
        ("events", "content", "number = 5"),
    ):
        store._writer.execute(f"UPDATE {table} SET {column} = {damage.format(column)} WHERE {where}")
    assert store.read_record("bad") == StoredRecord("watch", 1, "")
    assert store.list_records("", 9) == [("bad", StoredRecord("watch", 1, "")), ("good", StoredRecord("ok", 1, "r2"))]
    assert store.read_steps("bad") == ["n2"]
    assert store.read_step("bad", 1) is None
    assert store.read_events("bad") == ["e6"]
    assert store.read_answer("bad", "l") == KeptAnswer("l", "d", "b")
    with pytest.raises(DamagedText, match="answer under the key 'k'"):
        store.read_answer("bad", "k")


def test_file_that_is_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    """SQLite goes on writing to a file that has no name any more."""
    path, away = tmp_path / "s.sqlite", tmp_path / "away.sqlite"
    store = Store(path, IDENTITY)
    path.rename(away)
    for act in (lambda: store.commit(Transaction({"cam": make_change()})), lambda: store.probe(1)):
        with pytest.raises(OSError, match="was removed or replaced"):
            act()
    path.write_bytes(b"another")
    with pytest.raises(OSError, match="was removed or replaced"):
        store.probe(1)
    away.replace(path)
    store.probe(1)
    store.commit(Transaction({"cam": make_change("r")}))
    assert read_text(store, "cam") == "r"
    store.close()


def test_probe_needs_room_and_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite", IDENTITY)
    store.probe(100_000)
    assert store._ask("SELECT COUNT(*) FROM probes") == [(0,)]
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.probe(10_000_000)
    store._writer.execute("PRAGMA max_page_count = 1000000")
    store.probe(10_000_000)
    store.close()


def test_backup_of_a_store_in_use_is_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite", IDENTITY)
    store.commit(Transaction({"cam": make_change("r", state=StoredState(b"1"))}))
    source, copy = sqlite3.connect(tmp_path / "s.sqlite"), sqlite3.connect(tmp_path / "copy.sqlite")
    source.backup(copy)
    source.close()
    copy.close()
    other = Store(tmp_path / "copy.sqlite", IDENTITY)
    assert other.read_state("cam") == StoredState(b"1")
    other.close()
    store.close()
