"""SqlStore: the states of all streams in tables, whichever database holds them.

The engine alone knows what the texts and bytes mean. A shared store has an epoch for each stream, which a deleted
stream keeps. Every claim raises it, and a commit names the epochs that it rests on. What rests on an old one is
refused: another engine serves that stream now. An engine may wrongly believe that a stream is its own, but its changes
are never written.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from lmr.core.errors import LmrError
from lmr.service.store.schema import OF_STREAM, VERSION, seal, unseal
from lmr.service.store.stored_types import (
    Claim,
    KeptAnswer,
    Refusals,
    StoredRecord,
    StoredState,
    StoreSummary,
    StreamChange,
    Transaction,
)

CLASSES = "classes or prompts"  # the name of their digest in an identity
NAMES = "names"  # the names of the classes, in JSON, which are told and not compared
CHECKSUM = "checksum"  # the fact about all other facts
MOST_EVENTS = 10_000  # kept of all streams
_LAST_EPOCH = 2**63 - 1
MOST_STEPS = 200  # notes of requests, kept of each stream
_ID = "(SELECT id FROM streams WHERE name = ?)"

Result = TypeVar("Result")


class OtherIdentity(LmrError):
    """A store holds states of another model, of other classes or of another method: ``stored`` is its own ``name``.

    For classes it is the names in JSON, empty where they are not known.
    """

    def __init__(self, message: str, name: str = "", stored: str = "") -> None:  # defaults: it is pickled on a cluster
        super().__init__(message)
        self.name, self.stored = name, stored


class Statements:
    """The statements of one transaction, on a cursor of the database; ``?`` is for values in all of them."""

    def __init__(self, cursor: Any, mark: str = "?") -> None:
        self._cursor, self._mark = cursor, mark

    def run(self, query: str, *values: Any) -> list[Any]:
        """Run a statement; return its rows."""
        self._cursor.execute(query.replace("?", self._mark), values)
        return self._cursor.fetchall() if self._cursor.description else []

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""
        if rows:
            self._cursor.executemany(query.replace("?", self._mark), rows)


class SqlStore(abc.ABC):
    """States, records, kept answers and events of streams. A store that cannot be used raises StoreError.

    Writing is for one thread, reading for any. ``identity`` names the model, the classes and the method whose states
    it holds, each under its name in a sentence; a store of another one is refused, but for other classes with
    ``adopt``. ``title`` names the store in messages, without a password.
    """

    durable = True  # False if the store is in memory and ends with the process
    shared = False  # True if several engines write it: then an engine asks it before it trusts its own memory
    lock_rows = ""  # what keeps selected rows from changing until the end of the transaction

    def __init__(self, title: str, identity: Mapping[str, str], *, adopt: bool = False) -> None:
        self.title, self.identity, self.adopt = title, dict(identity), adopt

    # A database.

    @abc.abstractmethod
    def close(self) -> None:
        """Close the store."""

    @abc.abstractmethod
    def _read(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query, as they were committed."""

    @abc.abstractmethod
    def _write(self, work: Callable[[Statements], Result]) -> Result:
        """Run ``work`` in a transaction; again, if the connection was lost and nobody knows what became of it."""

    @abc.abstractmethod
    def _measure_bytes(self) -> int:
        """Return the size on the disk."""

    # Writing.

    def claim(self, stream: str) -> Claim:
        """Begin to serve a stream, and read it. In a shared store, whoever served it before cannot commit any more."""
        if not self.shared:
            return _read_claim(self._read, stream, 0)
        return self._write(lambda sql: _read_claim(sql.run, stream, _raise_epoch(sql, stream)))

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        """Write a transaction, or nothing and raise StoreError.

        The answers to the last ``keys`` requests with a key are kept for each stream. Returns the refused streams,
        which are served elsewhere or whose request was applied before; there are none unless the store is shared.
        """
        return self._write(lambda sql: self._commit(sql, transaction, keys))

    def probe(self, size: int) -> None:
        """Write and remove ``size`` bytes."""
        self._write(lambda sql: sql.run("INSERT INTO probes VALUES (?)", bytes(max(1, size))))
        self._write(lambda sql: sql.run("DELETE FROM probes"))

    # Reading: what was committed.

    def read_record(self, stream: str) -> StoredRecord | None:
        """Return the record of a stream."""
        found = self._read("SELECT health, change, record FROM streams WHERE name = ?", stream)
        return _make_record(*found[0]) if found else None

    def read_steps(self, stream: str, seq: int | None = None) -> list[str]:
        """Return the notes of the last requests, oldest first, or of one of them; damaged ones are left out."""
        one, values = ("", []) if seq is None else (" AND seq = ?", [seq])
        return _unseal_all(
            self._read(f"SELECT note FROM steps WHERE stream = {_ID}{one} ORDER BY seq", stream, *values)
        )

    def read_answer(self, stream: str, key: str) -> KeptAnswer | None:
        """Return the answer that is kept under a key."""
        found = self._read(f"SELECT digest, content FROM answers WHERE stream = {_ID} AND key = ?", stream, key)
        return _make_answer(key, *found[0]) if found else None

    def read_events(self, stream: str, limit: int = 100) -> list[str]:
        """Return the last events of a stream, or with "" those of the service, oldest first, without damaged ones."""
        query = "SELECT content FROM events WHERE stream = ? ORDER BY number DESC LIMIT ?"
        return _unseal_all(reversed(self._read(query, stream, limit)))

    def list_records(self, after: str, limit: int) -> list[tuple[str, StoredRecord]]:
        """Return the names and records of streams whose names come after ``after``, in the order of the names."""
        query = "SELECT name, health, change, record FROM streams WHERE name > ? ORDER BY name LIMIT ?"
        return [(name, _make_record(*rest)) for name, *rest in self._read(query, after, limit)]

    def summarise(self) -> StoreSummary:
        """Count the streams, and measure the store."""
        found = self._read("SELECT health, COUNT(*), MAX(change) FROM streams GROUP BY health")
        last = max((change for _, _, change in found), default=0)
        return StoreSummary({health: count for health, count, _ in found}, last, self._measure_bytes())

    # The transaction of a commit.

    def _commit(self, sql: Statements, transaction: Transaction, keys: int) -> Refusals:
        refused = self._find_refused(sql, transaction) if self.shared else {}
        changes = {name: change for name, change in sorted(transaction.streams.items()) if name not in refused}
        if gone := [(name,) for name, change in changes.items() if change.fresh]:
            for table in OF_STREAM:
                sql.run_many(f"DELETE FROM {table} WHERE stream = {_ID}", gone)
            sql.run_many("DELETE FROM events WHERE stream = ?", gone)
            sql.run_many("DELETE FROM streams WHERE name = ?", gone)
        _write_records(sql, changes)
        kept = {name: change for name, change in changes.items() if change.record is not None}
        _write_states(sql, {name: change.state for name, change in kept.items() if change.state is not None})
        _write_steps(sql, kept)
        _write_answers(sql, kept, keys)
        events = [(stream, seal(text)) for stream, text in transaction.events if stream not in refused]
        sql.run_many("INSERT INTO events (stream, content) VALUES (?, ?)", events)
        oldest = "SELECT number FROM events ORDER BY number DESC LIMIT 1 OFFSET ?"
        if events:
            sql.run(f"DELETE FROM events WHERE number <= ({oldest})", MOST_EVENTS)
        return refused

    def _find_refused(self, sql: Statements, transaction: Transaction) -> Refusals:
        """Return the streams whose changes must not be written; nobody claims or changes the others meanwhile."""
        names = sorted({*transaction.streams, *transaction.epochs})
        if not names:
            return {}
        query = f"SELECT name, epoch FROM fences WHERE name IN ({_mark(names)}) ORDER BY name{self.lock_rows}"
        epochs = dict(sql.run(query, *names))
        refused: Refusals = {name: None for name in names if epochs.get(name) != transaction.epochs.get(name, -1)}
        sent = [
            (name, answer.key)
            for name, change in transaction.streams.items()
            if name not in refused and not change.fresh
            for answer in change.answers
        ]
        for name, key, digest, content in _find_answers(sql, sent):
            refused[name] = _make_answer(key, digest, content)
            _raise_epoch(sql, name)  # what was computed on top of the second step is refused too
        return refused

    # A new store, or one from before.

    def _prepare(self, sql: Statements, tables: Collection[str], create: Iterable[str]) -> None:
        """Create the tables of a new store, and refuse those of another model or of another version of lmr."""
        if not tables:
            for statement in create:
                sql.run(statement)
            _write_facts(sql, {"format": "lmr-store", "version": str(VERSION), **self.identity})
            return
        stored = _read_facts(sql) if "facts" in tables else {}
        if stored.get("format") != "lmr-store":
            raise LmrError(f"{self.title} is a database, but not a store of lmr; give another --store.")
        version = stored.get("version", "")
        if version.isdecimal() and version != str(VERSION):
            raise LmrError(
                f"The store {self.title} has format {version}, this lmr reads {VERSION}; use the lmr that wrote it, or "
                "give another --store."
            )
        if stored.get(CHECKSUM) != _sum_facts(stored):
            raise LmrError(
                f"The store {self.title} is damaged: its facts do not have their checksum. Restore it from a copy, or "
                "give another --store."
            )
        for name, value in self.identity.items():
            if name != NAMES and value != stored.get(name) and not (name == CLASSES and self.adopt):
                raise OtherIdentity(
                    f"The store {self.title} holds states of another {name}: {stored.get(name)}, not {value}. Serve "
                    "that one, or give another --store.",
                    name,
                    stored.get(NAMES if name == CLASSES else name, ""),
                )
        if self.adopt:
            _write_facts(sql, stored | self.identity)


def _read_facts(sql: Statements) -> dict[str, str]:
    return {str(name): str(value) for name, value in sql.run("SELECT name, value FROM facts")}


def _write_facts(sql: Statements, facts: Mapping[str, str]) -> None:
    sql.run("DELETE FROM facts")
    sql.run_many("INSERT INTO facts VALUES (?, ?)", list({**facts, CHECKSUM: _sum_facts(facts)}.items()))


def _sum_facts(facts: Mapping[str, str]) -> str:
    return seal(json.dumps(sorted(pair for pair in facts.items() if pair[0] != CHECKSUM)))[:8]


def _mark(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _raise_epoch(sql: Statements, stream: str) -> int:
    following = f"CASE WHEN fences.epoch < {_LAST_EPOCH} THEN fences.epoch + 1 ELSE 1 END"  # larger only by damage
    query = f"INSERT INTO fences VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET epoch = {following} RETURNING epoch"
    return int(sql.run(query, stream)[0][0])


def _read_claim(read: Callable[..., list[Any]], stream: str, epoch: int) -> Claim:
    found = read(
        "SELECT id, health, change, record, watch, content FROM streams LEFT JOIN states ON states.stream = streams.id "
        "WHERE name = ?",
        stream,
    )
    if not found:
        return Claim(None, epoch)
    ((number, health, change, sealed, watch, content),) = found
    record = _make_record(health, change, sealed)
    if watch is None:
        return Claim(record, epoch)
    text = unseal(watch, content)
    if text is None:
        return Claim(record, epoch, damage=f"the state of stream {stream!r} does not have its checksum")
    parts = dict(read("SELECT name, content FROM parts WHERE stream = ?", number))
    return Claim(record, epoch, StoredState(content, text, parts))


def _find_answers(sql: Statements, sent: Sequence[tuple[str, str]]) -> list[Any]:
    """Return the kept answers among streams and keys: name, key, digest and content."""
    if not sent:
        return []
    query = (
        "SELECT streams.name, key, digest, content FROM answers JOIN streams ON streams.id = answers.stream "
        f"WHERE (streams.name, key) IN (VALUES {', '.join(['(?, ?)'] * len(sent))})"
    )
    return sql.run(query, *(value for pair in sent for value in pair))


def _make_record(health: object, change: object, sealed: object) -> StoredRecord:
    return StoredRecord(str(health), change if isinstance(change, int) else 0, unseal(sealed) or "")


def _make_answer(key: str, digest: str, sealed: object) -> KeptAnswer:
    return KeptAnswer(key, digest, unseal(sealed) or "")


def _unseal_all(rows: Iterable[tuple[object]]) -> list[str]:
    return [text for (sealed,) in rows if (text := unseal(sealed)) is not None]


def _write_records(sql: Statements, changes: Mapping[str, StreamChange]) -> None:
    sql.run_many(
        "INSERT INTO streams (name, health, change, record) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
        "health = excluded.health, change = excluded.change, record = excluded.record",
        [
            (name, change.record.health, change.record.change, seal(change.record.content))
            for name, change in changes.items()
            if change.record is not None
        ],
    )


def _write_states(sql: Statements, states: Mapping[str, StoredState]) -> None:
    sql.run_many(
        f"INSERT INTO states VALUES ({_ID}, ?, ?) ON CONFLICT (stream) DO UPDATE SET "
        "watch = excluded.watch, content = excluded.content",
        [(name, seal(state.watch, state.content), state.content) for name, state in states.items()],
    )
    parts = [(name, part, content) for name, state in states.items() for part, content in state.parts.items()]
    sql.run_many(
        f"INSERT INTO parts VALUES ({_ID}, ?, ?) ON CONFLICT (stream, name) DO UPDATE SET content = excluded.content",
        [row for row in parts if row[2] is not None],
    )
    removed = [row[:2] for row in parts if row[2] is None]
    sql.run_many(f"DELETE FROM parts WHERE stream = {_ID} AND name = ?", removed)


def _write_steps(sql: Statements, changes: Mapping[str, StreamChange]) -> None:
    rows = [(name, seq, seal(note)) for name, change in changes.items() for seq, note in change.steps.items()]
    sql.run_many(
        f"INSERT INTO steps VALUES ({_ID}, ?, ?) ON CONFLICT (stream, seq) DO UPDATE SET note = excluded.note", rows
    )
    last = [(name, max(change.steps) - MOST_STEPS) for name, change in changes.items() if change.steps]
    sql.run_many(f"DELETE FROM steps WHERE stream = {_ID} AND seq <= ?", [row for row in last if row[1] > 0])


def _write_answers(sql: Statements, changes: Mapping[str, StreamChange], keys: int) -> None:
    rows = [
        (name, kept.key, kept.digest, seal(kept.content)) for name, change in changes.items() for kept in change.answers
    ]
    sql.run_many(
        f"INSERT INTO answers (stream, key, digest, content) VALUES ({_ID}, ?, ?, ?) "
        "ON CONFLICT (stream, key) DO UPDATE SET digest = excluded.digest, content = excluded.content",
        rows,
    )
    sql.run_many(
        f"DELETE FROM answers WHERE stream = {_ID} AND number <= "
        f"(SELECT number FROM answers WHERE stream = {_ID} ORDER BY number DESC LIMIT 1 OFFSET ?)",
        [(name, name, keys) for name in dict.fromkeys(row[0] for row in rows)],
    )
