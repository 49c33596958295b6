"""The store: what is committed is there, whole, for whom it belongs to."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmr.core.errors import LmrError
from lmr.service.store.sqlite_store import SqliteStore
from lmr.service.store.stored_types import (
    KeptAnswer,
    StoredRecord,
    StoredState,
    StoreError,
    StreamChange,
    Transaction,
)

IDENTITY = {"model": "pocket", "classes or prompts": "abc", "method": "lmr(lr=0.001)"}


def make_change(text: str = "r", *, health: str = "ok", change: int = 1, **values: object) -> StreamChange:
    return StreamChange(StoredRecord(health, change, text), **values)  # type: ignore[arg-type]


def read_text(store: SqliteStore, stream: str) -> str | None:
    found = store.read_record(stream)
    return None if found is None else found.content


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "deep" / "lmr.sqlite" if request.param == "file" else None, IDENTITY)
    yield made
    made.close()


def test_file_is_written_to_the_disk_at_every_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite", IDENTITY)
    assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    store.close()


def test_other_files_and_formats_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a database, but long enough to look at " * 9)
    with pytest.raises(LmrError, match="database"):
        SqliteStore(text, IDENTITY)
    foreign = tmp_path / "foreign"
    with sqlite3.connect(foreign) as made:
        made.execute("CREATE TABLE things (x)")
    made.close()
    with pytest.raises(LmrError, match="not a store of lmr"):
        SqliteStore(foreign, IDENTITY)
    newer = tmp_path / "newer"
    SqliteStore(newer, IDENTITY).close()
    with sqlite3.connect(newer) as made:
        made.execute("UPDATE facts SET value = '99' WHERE name = 'version'")
    made.close()
    with pytest.raises(LmrError, match="format"):
        SqliteStore(newer, IDENTITY)
    (tmp_path / "file").write_text("")
    with pytest.raises(LmrError, match="Cannot use the folder"):
        SqliteStore(tmp_path / "file" / "s.sqlite", IDENTITY)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE facts SET value = 'x' WHERE name = 'version'",
        "DELETE FROM facts WHERE name = 'version'",
        "UPDATE facts SET value = x'00' WHERE name = 'model'",
        "UPDATE facts SET name = 'methox' WHERE name = 'method'",
        "DELETE FROM facts WHERE name = 'checksum'",
    ],
)
def test_damaged_facts_are_a_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s.sqlite"
    SqliteStore(path, IDENTITY).close()
    with contextlib.closing(sqlite3.connect(path)) as made, made:
        made.execute(damage)
    with pytest.raises(LmrError, match="checksum"):
        SqliteStore(path, IDENTITY)


def test_a_file_is_one_store_whatever_its_name(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite", IDENTITY)
    (tmp_path / "link").symlink_to(tmp_path / "s.sqlite")
    (tmp_path / "other").symlink_to(tmp_path)
    for name in ("link", "other/s.sqlite"):
        with pytest.raises(LmrError, match="Another process uses the store"):
            SqliteStore(tmp_path / name, IDENTITY)
    store.commit(Transaction({"cam": make_change("r")}))
    store.close()
    os.link(tmp_path / "s.sqlite", tmp_path / "hard")
    with pytest.raises(LmrError, match="several names"):
        SqliteStore(tmp_path / "hard", IDENTITY)
    (tmp_path / "hard").unlink()
    store = SqliteStore(tmp_path / "link", IDENTITY)
    assert read_text(store, "cam") == "r"
    assert not (tmp_path / "link-wal").exists()
    store.close()


def test_second_process_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite", IDENTITY)
    script = (
        "import sys; from pathlib import Path; from lmr.service.store.sqlite_store import SqliteStore\n"
        "try: SqliteStore(Path(sys.argv[1]), {})\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(store.path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("Another process uses the store")
    store.close()


@pytest.mark.parametrize("change", ["content = x'00'", "watch = watch || ' '"])
def test_damaged_state_is_noticed(store: SqliteStore, change: str) -> None:
    store.commit(Transaction({"cam": make_change(state=StoredState(b"tensors", "{}"))}))
    store._writer.execute(f"UPDATE states SET {change}")
    claim = store.claim("cam")
    assert (claim.state, claim.damage) == (None, "the state of stream 'cam' does not have its checksum")


@pytest.mark.parametrize("damage", ["{0} || 'x'", "CAST(x'ff' || {0} AS TEXT)", "x'00'"])
def test_damaged_texts_are_noticed_and_fail_no_other(store: SqliteStore, damage: str) -> None:
    values = {"steps": {1: "n1", 2: "n2"}, "answers": [KeptAnswer("k", "d", "a"), KeptAnswer("l", "d", "b")]}
    store.commit(Transaction({"bad": make_change("r1", health="watch", **values), "good": make_change("r2")}))
    store.commit(Transaction(events=[("bad", "e5"), ("bad", "e6")]))
    for table, column, where in (
        ("streams", "record", "name = 'bad'"),
        ("steps", "note", "seq = 1"),
        ("answers", "content", "key = 'k'"),
        ("events", "content", "number = 1"),
    ):
        store._writer.execute(f"UPDATE {table} SET {column} = {damage.format(column)} WHERE {where}")
    assert store.read_record("bad") == StoredRecord("watch", 1, "")
    assert store.list_records("", 9) == [("bad", StoredRecord("watch", 1, "")), ("good", StoredRecord("ok", 1, "r2"))]
    assert store.read_steps("bad") == ["n2"]
    assert store.read_steps("bad", 1) == []
    assert store.read_events("bad") == ["e6"]
    assert store.read_answer("bad", "l") == KeptAnswer("l", "d", "b")
    assert store.read_answer("bad", "k") == KeptAnswer("k", "d", "")


def test_file_that_is_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    """SQLite goes on writing to a file that has no name any more."""
    path, away = tmp_path / "s.sqlite", tmp_path / "away.sqlite"
    store = SqliteStore(path, IDENTITY)
    path.rename(away)
    for act in (lambda: store.commit(Transaction({"cam": make_change()})), lambda: store.probe(1)):
        with pytest.raises(StoreError, match="was removed or replaced"):
            act()
    path.write_bytes(b"another")
    with pytest.raises(StoreError, match="was removed or replaced"):
        store.probe(1)
    away.replace(path)
    store.probe(1)
    store.commit(Transaction({"cam": make_change("r")}))
    assert read_text(store, "cam") == "r"
    store.close()


def test_probe_needs_room_and_leaves_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite", IDENTITY)
    store.probe(100_000)
    assert store._read("SELECT COUNT(*) FROM probes") == [(0,)]
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.probe(10_000_000)
    store._writer.execute("PRAGMA max_page_count = 1000000")
    store.probe(10_000_000)
    store.close()


def test_backup_of_a_store_in_use_is_a_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite", IDENTITY)
    store.commit(Transaction({"cam": make_change("r", state=StoredState(b"1"))}))
    source, copy = sqlite3.connect(tmp_path / "s.sqlite"), sqlite3.connect(tmp_path / "copy.sqlite")
    source.backup(copy)
    source.close()
    copy.close()
    other = SqliteStore(tmp_path / "copy.sqlite", IDENTITY)
    assert other.claim("cam").state == StoredState(b"1")
    other.close()
    store.close()
