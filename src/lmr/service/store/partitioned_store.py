"""PartitionedStore: several stores as one. A stream belongs to the store that a hash of its name chooses."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from lmr.service.store.sql_store import Result, SqlStore
from lmr.service.store.stored_types import (
    Claim,
    KeptAnswer,
    Refusals,
    StoredEvent,
    StoredRecord,
    StoreSummary,
    Transaction,
)


class PartitionedStore:
    """Passes the calls of ``SqlStore`` on to the store of each stream; what is about none belongs to the first.

    A transaction is one in each store. If one of them fails, the others may have written their part: a request that is
    sent again with its key is applied once all the same.
    """

    durable = shared = True

    def __init__(self, stores: Sequence[SqlStore]) -> None:
        self._stores = list(stores)
        self._threads = ThreadPoolExecutor(2 * len(self._stores), "lmr-stores")  # commits beside ``follow``

    def claim(self, stream: str) -> Claim:
        """Begin to serve a stream, and read it."""
        return self._find(stream).claim(stream)

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        """Write every stream where it belongs, and return the refused streams."""
        parts = {store: Transaction() for store in range(len(self._stores))}
        for stream, change in transaction.streams.items():
            parts[self._place(stream)].streams[stream] = change
        for stream, epoch in transaction.epochs.items():
            parts[self._place(stream)].epochs[stream] = epoch
        for event in transaction.events:
            parts[self._place(event.stream)].events.append(event)
        sent = [(self._stores[place], part) for place, part in parts.items() if part]
        refused: Refusals = {}
        for found in self._threads.map(lambda pair: pair[0].commit(pair[1], keys), sent):
            refused |= found
        return refused

    def probe(self, size: int) -> None:
        """Write and remove ``size`` bytes in every store."""
        self._ask_all(lambda store: store.probe(size))

    def follow(self, seconds: float) -> list[StoredEvent]:
        """Return events that other engines committed; wait for them up to some seconds."""
        return [event for events in self._ask_all(lambda store: store.follow(seconds)) for event in events]

    def close(self) -> None:
        """Close the stores."""
        self._threads.shutdown()
        for store in self._stores:
            store.close()

    def read_record(self, stream: str) -> StoredRecord | None:
        """Return the record of a stream."""
        return self._find(stream).read_record(stream)

    def read_steps(self, stream: str, seq: int | None = None) -> list[str]:
        """Return the notes of the last requests, or of one of them."""
        return self._find(stream).read_steps(stream, seq)

    def read_answer(self, stream: str, key: str) -> KeptAnswer | None:
        """Return the answer that is kept under a key."""
        return self._find(stream).read_answer(stream, key)

    def read_events(self, stream: str, limit: int = 100) -> list[str]:
        """Return the last events of a stream."""
        return self._find(stream).read_events(stream, limit)

    def list_records(self, after: str, limit: int) -> list[tuple[str, StoredRecord]]:
        """Return the names and records of the streams of all stores, in the order of the names."""
        found = [pair for pairs in self._ask_all(lambda store: store.list_records(after, limit)) for pair in pairs]
        return sorted(found, key=lambda pair: pair[0])[:limit]

    def summarise(self) -> StoreSummary:
        """Count the streams, and measure the stores."""
        found = self._ask_all(lambda store: store.summarise())
        total = sum((Counter(one.by_health) for one in found), Counter[str]())
        return StoreSummary(dict(total), max(one.last_change for one in found), sum(one.size for one in found))

    def _place(self, stream: str) -> int:
        return zlib.crc32(stream.encode()) % len(self._stores) if stream else 0

    def _find(self, stream: str) -> SqlStore:
        return self._stores[self._place(stream)]

    def _ask_all(self, ask: Callable[[SqlStore], Result]) -> list[Result]:
        return list(self._threads.map(ask, self._stores))
