"""Store: the states of all streams in one SQLite file. Writing is for one thread, reading for any.

The engine alone knows what the texts and bytes mean. ``sqlite3 FILE ".backup COPY"`` copies a store that is in use.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.files import hold_lock
from lmr.service.store.schema import OF_STREAM, TABLES, VERSION, connect, seal, unseal
from lmr.service.store.stored_types import (
    Claim,
    DamagedText,
    KeptAnswer,
    StoredEvent,
    StoredRecord,
    StoredState,
    StreamChange,
    Transaction,
)

MOST_EVENTS = 10_000  # kept of all streams
MOST_STEPS = 200  # notes of requests, kept of each stream


Refusals = dict[str, KeptAnswer | None]  # streams, with the answer that is kept if the request was applied before


class OtherIdentity(LmrError):
    """A store holds states of another model, of other classes or of another method: ``stored`` is its own ``name``."""

    def __init__(self, message: str, name: str = "", stored: str = "") -> None:  # defaults: it is pickled on a cluster
        super().__init__(message)
        self.name, self.stored = name, stored


class Store:
    """One SQLite file, or memory if ``path`` is None.

    ``identity`` names the model, the classes and the method whose states it holds, each under its name in a sentence;
    a store of another one is refused.
    """

    shared = False  # the file is locked, so that nobody else changes it

    def __init__(self, path: str | os.PathLike[str] | None, identity: Mapping[str, str]) -> None:
        self.path, self.identity = None if path is None else Path(path), dict(identity)
        self._held = contextlib.ExitStack()  # the lock of the file
        if self.path is not None:
            self._held.enter_context(_lock(self.path))
        self._writing, self._reading = threading.RLock(), threading.RLock()
        try:
            self._writer = connect(self.path)
            try:
                self._prepare()
                self._reader = self._writer if self.path is None else connect(self.path)
            except (sqlite3.Error, LmrError):
                self._writer.close()
                raise
        except (sqlite3.Error, LmrError) as error:
            self._held.close()
            if isinstance(error, LmrError):
                raise
            raise LmrError(f"Cannot use the store {str(self.path)!r}: {error}; give another --state-dir.") from error
        if self.path is None:
            self._reading = self._writing
        self._file = self._find_file()

    # Writing.

    def claim(self, stream: str) -> Claim:
        """Begin to serve a stream; its state is read with ``read_state`` afterwards."""
        return Claim(self.read_record(stream))

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        """Write a transaction to the disk, or nothing and raise sqlite3.Error or OSError.

        The answers to the last ``keys`` requests with a key are kept for each stream. Returns the refused streams,
        which are served elsewhere or whose request was applied before; there are none unless the store is shared.
        """
        with self._writing, WriteBlock(self._writer) as database:
            self._check_file()
            refused = self._find_refused(database, transaction)
            for stream, change in transaction.streams.items():
                if stream not in refused:
                    _write_change(database, stream, change, keys)
            events = [event for event in transaction.events if event.stream not in refused]
            for event in events:
                number = self._choose_number(database, event)
                database.execute(
                    "INSERT OR REPLACE INTO events VALUES (?, ?, ?)", (number, event.stream, seal(event.content))
                )
            if events:
                database.execute(
                    "DELETE FROM events WHERE number <= "
                    "(SELECT number FROM events ORDER BY number DESC LIMIT 1 OFFSET ?)",
                    (MOST_EVENTS,),
                )
        return refused

    def probe(self, size: int) -> None:
        """Write and remove ``size`` bytes; sqlite3.Error or OSError if the disk does not take them."""
        with self._writing:
            self._check_file()
            with WriteBlock(self._writer) as database:
                database.execute("INSERT INTO probes VALUES (zeroblob(?))", (max(1, size),))
            with WriteBlock(self._writer) as database:
                database.execute("DELETE FROM probes")

    def close(self) -> None:
        """Close the file."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()
            self._held.close()

    # Reading: what was committed.

    def read_record(self, stream: str) -> StoredRecord | None:
        """Return the record of a stream."""
        found = self._ask("SELECT health, change, record FROM streams WHERE name = ?", stream)
        return _make_record(*found[0]) if found else None

    def read_state(self, stream: str) -> StoredState | None:
        """Return the state of a stream with all its parts; DamagedText if its bytes were damaged."""
        with self._reading:
            found = self._ask("SELECT stream, watch, content FROM states WHERE stream = (" + _ID + ")", stream)
            if not found:
                return None
            ((number, sealed, content),) = found
            parts: dict[str, bytes | None] = dict(self._ask("SELECT name, content FROM parts WHERE stream = ?", number))
        watch = unseal(sealed, content)
        if watch is None:
            raise DamagedText(f"the state of stream {stream!r} does not have its checksum")
        return StoredState(content, watch, parts)

    def read_step(self, stream: str, seq: int) -> str | None:
        """Return the note of one request; None also if it is damaged."""
        found = self._ask("SELECT note FROM steps WHERE stream = (" + _ID + ") AND seq = ?", stream, seq)
        return unseal(found[0][0]) if found else None

    def read_steps(self, stream: str) -> list[str]:
        """Return the notes of the last requests, oldest first, without damaged ones."""
        return _unseal_all(self._ask("SELECT note FROM steps WHERE stream = (" + _ID + ") ORDER BY seq", stream))

    def read_answer(self, stream: str, key: str) -> KeptAnswer | None:
        """Return the answer that is kept under a key; DamagedText if its bytes were damaged."""
        query = "SELECT key, digest, content FROM answers WHERE stream = (" + _ID + ") AND key = ?"
        found = self._ask(query, stream, key)
        if not found:
            return None
        ((_, digest, sealed),) = found
        content = unseal(sealed)
        if content is None:  # to apply the request again would be worse
            raise DamagedText(f"the answer under the key {key!r} of stream {stream!r} does not have its checksum")
        return KeptAnswer(key, digest, content)

    def read_events(self, stream: str | None = None, limit: int = 100) -> list[str]:
        """Return the last events, of one stream or of all, oldest first, without damaged ones."""
        which, values = ("", []) if stream is None else ("WHERE stream = ? ", [stream])
        query = f"SELECT content FROM events {which}ORDER BY number DESC LIMIT ?"
        return _unseal_all(reversed(self._ask(query, *values, limit)))

    def list_records(self, after: str, limit: int) -> list[tuple[str, StoredRecord]]:
        """Return the names and records of streams whose names come after ``after``, in the order of the names."""
        query = "SELECT name, health, change, record FROM streams WHERE name > ? ORDER BY name LIMIT ?"
        return [(name, _make_record(*rest)) for name, *rest in self._ask(query, after, limit)]

    def count_health(self) -> dict[str, int]:
        """Return the number of streams of each health."""
        return dict(self._ask("SELECT health, COUNT(*) FROM streams GROUP BY health"))

    def find_last_change(self) -> int:
        """Return the largest number of a change or an event."""
        query = (
            "SELECT MAX(COALESCE((SELECT MAX(change) FROM streams), 0), COALESCE((SELECT MAX(number) FROM events), 0))"
        )
        return int(self._ask(query)[0][0])

    def measure_bytes(self) -> int:
        """Return the size of the file with its log."""
        if self.path is None:
            return 0
        paths = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(path.stat().st_size for path in paths if path.exists())

    # Internals.

    def _find_file(self) -> tuple[int, int] | None:
        """Return what tells the file from any other, also one of the same name; None if there is none."""
        try:
            found = None if self.path is None else self.path.stat()
        except FileNotFoundError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)

    def _check_file(self) -> None:
        """Raise an OSError if the file was removed or replaced: SQLite would go on writing to what nobody can open."""
        if self._find_file() != self._file:
            raise OSError(
                f"the file {str(self.path)!r} was removed or replaced; put it back, or start the service again"
            )

    def _find_refused(self, database: sqlite3.Connection, transaction: Transaction) -> Refusals:
        """Return the streams whose changes must not be written."""
        return {}

    def _choose_number(self, database: sqlite3.Connection, event: StoredEvent) -> int:
        """Return the number under which an event is written."""
        return event.number

    def _ask(self, query: str, *values: Any) -> list[Any]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()

    def _prepare(self) -> None:
        """Create the tables of a new store; refuse the store of another model."""
        with WriteBlock(self._writer) as database:
            found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if not found:
                for statement in TABLES.split(";"):
                    database.execute(statement)
                facts = {"format": "lmr-store", "version": str(VERSION), **self.identity}
                database.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
                return
            tables = {name for (name,) in found}
            stored = dict(database.execute("SELECT name, value FROM facts").fetchall()) if "facts" in tables else {}
        if stored.get("format") != "lmr-store":
            raise LmrError(f"{str(self.path)!r} is a database, but not a store of lmr; give another --state-dir.")
        if stored["version"] != str(VERSION):
            raise LmrError(
                f"The store {str(self.path)!r} has format {stored['version']}, this lmr reads {VERSION}; use the lmr "
                "that wrote it, or give another --state-dir."
            )
        for name, value in self.identity.items():
            if stored.get(name) != value:
                raise OtherIdentity(
                    f"The store {str(self.path)!r} holds states of another {name}: {stored.get(name)}, not {value}. "
                    "Serve that one, or give another --state-dir.",
                    name,
                    stored.get(name, ""),
                )


_ID = "SELECT id FROM streams WHERE name = ?"


def _make_record(health: object, change: object, sealed: object) -> StoredRecord:
    return StoredRecord(str(health), change if isinstance(change, int) else 0, unseal(sealed) or "")


def _unseal_all(rows: Iterable[tuple[object]]) -> list[str]:
    return [text for (sealed,) in rows if (text := unseal(sealed)) is not None]


class WriteBlock:
    """A context whose statements are committed at its end, or undone if anything fails."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database

    def __enter__(self) -> sqlite3.Connection:
        self.database.execute("BEGIN IMMEDIATE")
        return self.database

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.database.execute("COMMIT")
        finally:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")


def _lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """Create the folder of the store, and return a context in which no other process opens it."""
    failed = f"Cannot use the folder {str(path.parent)!r}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"{failed}: {error.strerror}; give another --state-dir.") from error
    message = f"Another process uses the store {str(path)!r}; end it, or give another --state-dir."
    return hold_lock(path.with_name(f"{path.name}.lock"), message, failed=failed)


def _write_change(database: sqlite3.Connection, stream: str, change: StreamChange, keys: int) -> None:
    if change.fresh:
        for table in OF_STREAM:
            database.execute(f"DELETE FROM {table} WHERE stream = (" + _ID + ")", (stream,))
        database.execute("DELETE FROM events WHERE stream = ?", (stream,))
        database.execute("DELETE FROM streams WHERE name = ?", (stream,))
    if change.record is None:
        return
    record = change.record
    ((number,),) = database.execute(
        "INSERT INTO streams (name, health, change, record) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
        "health = excluded.health, change = excluded.change, record = excluded.record RETURNING id",
        (stream, record.health, record.change, seal(record.content)),
    ).fetchall()
    if change.state is not None:
        _write_state(database, number, change.state)
    if change.steps:
        database.executemany(
            "INSERT OR REPLACE INTO steps VALUES (?, ?, ?)",
            [(number, seq, seal(note)) for seq, note in change.steps.items()],
        )
        last = max(change.steps) - MOST_STEPS
        database.execute("DELETE FROM steps WHERE stream = ? AND seq <= ?", (number, last))
    if change.answers:
        _write_answers(database, number, change.answers, keys)


def _write_state(database: sqlite3.Connection, number: int, state: StoredState) -> None:
    database.execute(
        "INSERT INTO states VALUES (?, ?, ?) ON CONFLICT (stream) DO UPDATE SET "
        "watch = excluded.watch, content = excluded.content",
        (number, seal(state.watch, state.content), state.content),
    )
    for name, content in state.parts.items():
        if content is None:
            database.execute("DELETE FROM parts WHERE stream = ? AND name = ?", (number, name))
        else:
            database.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", (number, name, content))


def _write_answers(database: sqlite3.Connection, number: int, answers: Sequence[KeptAnswer], keys: int) -> None:
    rows = [(number, kept.key, kept.digest, seal(kept.content)) for kept in answers]
    database.executemany("INSERT OR REPLACE INTO answers (stream, key, digest, content) VALUES (?, ?, ?, ?)", rows)
    database.execute(
        "DELETE FROM answers WHERE stream = ? AND number <= "
        "(SELECT number FROM answers WHERE stream = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (number, number, keys),
    )
