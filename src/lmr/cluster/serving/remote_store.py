"""RemoteStore: the stores of a cluster as the engine of a replica sees them, as one."""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmr.service.store.stored_types import (
    Claim,
    KeptAnswer,
    Refusals,
    StoredEvent,
    StoredRecord,
    StoreError,
    StoreSummary,
    Transaction,
)

ANSWER_SECONDS = 20.0  # for a store to answer; one that has to be started again takes a few


class RemoteStore:
    """Passes calls on to the actor of each stream's partition. It may be sent to other processes.

    A call that an actor was lost in the middle of is made again by Ray, when there is a new one. A commit may be made
    twice then: the second one is refused, with the answer that the first one kept.
    """

    durable = shared = True

    def __init__(self, actors: Sequence[Any], folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)
        self._actors = list(actors)
        self._bytes = [0] * len(self._actors)

    # Writing.

    def claim(self, stream: str) -> Claim:
        """Begin to serve a stream: whoever served it before cannot commit any more."""
        found: Claim = self._ask(stream, "claim", stream)
        return found

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        """Write every stream where it belongs, and what is about none to the first partition."""
        parts = self._split(transaction)
        refused: Refusals = {}
        for found in self._call([(place, "commit", (part, keys)) for place, part in parts.items()]):
            refused |= found
        return refused

    def probe(self, size: int) -> None:
        """Write and remove ``size`` bytes in every partition."""
        self._ask_all("probe", size)

    def close(self) -> None:
        """Do nothing: the actors belong to the service, and outlive a replica."""

    # Reading.

    def read_record(self, stream: str) -> StoredRecord | None:
        """Return the record of a stream."""
        found: StoredRecord | None = self._ask(stream, "read_record", stream)
        return found

    def read_steps(self, stream: str, seq: int | None = None) -> list[str]:
        """Return the notes of the last requests, or of one of them."""
        found: list[str] = self._ask(stream, "read_steps", stream, seq)
        return found

    def read_answer(self, stream: str, key: str) -> KeptAnswer | None:
        """Return the answer that is kept under a key."""
        found: KeptAnswer | None = self._ask(stream, "read_answer", stream, key)
        return found

    def read_events(self, stream: str, limit: int = 100) -> list[str]:
        """Return the last events of a stream."""
        found: list[str] = self._ask(stream, "read_events", stream, limit)
        return found

    def list_records(self, after: str, limit: int) -> list[tuple[str, StoredRecord]]:
        """Return the names and records of the streams of all partitions, in the order of the names."""
        found = [pair for pairs in self._ask_all("list_records", after, limit) for pair in pairs]
        return sorted(found, key=lambda pair: str(pair[0]))[:limit]

    def summarise(self) -> StoreSummary:
        """Count the streams, and measure the files."""
        found: list[StoreSummary] = self._ask_all("summarise")
        total = sum((Counter(one.by_health) for one in found), Counter[str]())
        return StoreSummary(dict(total), max(one.last_change for one in found), sum(one.size for one in found))

    def follow(self, seconds: float) -> list[StoredEvent]:
        """Return no events of other engines, after some seconds."""
        time.sleep(seconds)
        return []

    # The actors.

    def _find(self, stream: str) -> int:
        """Return the partition of a stream, or the first for what is about none."""
        return zlib.crc32(stream.encode()) % len(self._actors) if stream else 0

    def _split(self, transaction: Transaction) -> dict[int, Transaction]:
        parts: dict[int, Transaction] = {}
        for stream, change in transaction.streams.items():
            parts.setdefault(self._find(stream), Transaction()).streams[stream] = change
        for stream, epoch in transaction.epochs.items():
            parts.setdefault(self._find(stream), Transaction()).epochs[stream] = epoch
        for event in transaction.events:
            parts.setdefault(self._find(event.stream), Transaction()).events.append(event)
        return parts

    def _ask(self, stream: str, name: str, *values: Any) -> Any:
        return self._call([(self._find(stream), name, values)])[0]

    def _ask_all(self, name: str, *values: Any) -> list[Any]:
        return self._call([(place, name, values) for place in range(len(self._actors))])

    def _call(self, calls: Sequence[tuple[int, str, tuple[Any, ...]]]) -> list[Any]:
        """Call all actors at once and return their results; raise the error of a store, or OSError if one is gone."""
        import ray

        sent = [self._actors[place].call.remote(name, *values) for place, name, values in calls]
        try:
            answers = ray.get(sent, timeout=ANSWER_SECONDS)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise StoreError(f"a store of the cluster cannot be reached ({type(error).__name__})") from error
        for (place, _, _), (_, size) in zip(calls, answers, strict=True):
            self._bytes[place] = size
        return [value for value, _ in answers]
