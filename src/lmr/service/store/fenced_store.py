"""FencedStore: a store that several engines write, each stream by the engine that claimed it last.

Every claim raises the epoch of its stream, and a commit names the epochs that it rests on. One that rests on an old
epoch is refused: another engine serves that stream now. An engine may wrongly believe that a stream is its own, but
its changes are never written. Epochs are in the file, and survive it being closed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping

from lmr.service.store.schema import seal
from lmr.service.store.store import Refusals, Store, WriteBlock
from lmr.service.store.stored_types import Claim, KeptAnswer, StoredEvent, Transaction

_FENCES = "CREATE TABLE IF NOT EXISTS fences (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL)"


class FencedStore(Store):
    """A store with an epoch for each stream, which a deleted stream keeps to refuse late commits.

    A request whose key has an answer is refused as well, with that answer, so that it is applied once even where it
    was sent to two engines at the same time.
    """

    shared = True

    def __init__(self, path: str | os.PathLike[str] | None, identity: Mapping[str, str]) -> None:
        super().__init__(path, identity)
        with self._writing, WriteBlock(self._writer) as database:
            database.execute(_FENCES)

    def claim(self, stream: str) -> Claim:
        """Raise the epoch of a stream: whoever served it before cannot commit any more."""
        with self._writing, WriteBlock(self._writer) as database:
            epoch = _raise_epoch(database, stream)
        return Claim(self.read_record(stream), epoch)

    def _find_refused(self, database: sqlite3.Connection, transaction: Transaction) -> Refusals:
        refused: Refusals = {}
        for stream in {**transaction.streams, **transaction.epochs}:
            found = database.execute("SELECT epoch FROM fences WHERE name = ?", (stream,)).fetchall()
            if not found or found[0][0] != transaction.epochs.get(stream):
                refused[stream] = None
            elif kept := self._find_applied(stream, transaction):
                refused[stream] = kept
                _raise_epoch(database, stream)  # what was computed on top of the second step is refused too
        return refused

    def _find_applied(self, stream: str, transaction: Transaction) -> KeptAnswer | None:
        """Return the stored answer to a request of the transaction, if it was applied before."""
        change = transaction.streams.get(stream)
        if change is None or change.fresh:
            return None
        found = (self.read_answer(stream, kept.key) for kept in change.answers)
        return next((kept for kept in found if kept is not None), None)

    def _choose_number(self, database: sqlite3.Connection, event: StoredEvent) -> int:
        """Return the number of an event, or a new one if an event of another engine has taken it.

        The same event is there already where a commit is made a second time, as it is after the death of its store.
        """
        found = database.execute("SELECT stream, content FROM events WHERE number = ?", (event.number,)).fetchall()
        if found in ([], [(event.stream, seal(event.content))]):
            return event.number
        ((last,),) = database.execute("SELECT MAX(number) FROM events").fetchall()
        return int(last) + 1


def _raise_epoch(database: sqlite3.Connection, stream: str) -> int:
    """Return the new epoch of a stream."""
    query = "INSERT INTO fences VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1 RETURNING epoch"
    return int(database.execute(query, (stream,)).fetchall()[0][0])
