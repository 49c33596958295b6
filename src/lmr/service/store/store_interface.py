"""StateStore: the interface of a store for the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lmr.service.store.store import Refusals
from lmr.service.store.stored_types import Claim, KeptAnswer, StoredRecord, StoredState, Transaction


class StateStore(Protocol):
    """A store as ``Store`` describes it, method by method. Where it cannot be used: sqlite3.Error or OSError.

    ``shared`` says that other engines write it too. Then an engine asks the store before it trusts its own memory.
    """

    @property
    def path(self) -> Path | None:
        """Return the path of the store; None if it is in memory."""

    @property
    def shared(self) -> bool:
        """Return True if other engines write it too."""

    def claim(self, stream: str) -> Claim:
        """Begin to serve a stream."""

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        """Write a transaction; return the streams that were refused."""

    def probe(self, size: int) -> None:
        """Write and remove ``size`` bytes."""

    def close(self) -> None:
        """Close the store."""

    def read_record(self, stream: str) -> StoredRecord | None:
        """Return the record of a stream."""

    def read_state(self, stream: str) -> StoredState | None:
        """Return the state of a stream."""

    def read_step(self, stream: str, seq: int) -> str | None:
        """Return the note of one request."""

    def read_steps(self, stream: str) -> list[str]:
        """Return the notes of the last requests."""

    def read_answer(self, stream: str, key: str) -> KeptAnswer | None:
        """Return the answer that is kept under a key."""

    def read_events(self, stream: str, limit: int = 100) -> list[str]:
        """Return the last events of a stream."""

    def list_records(self, after: str, limit: int) -> list[tuple[str, StoredRecord]]:
        """Return the names and records of streams in the order of their names."""

    def count_health(self) -> dict[str, int]:
        """Return the number of streams of each health."""

    def find_last_change(self) -> int:
        """Return the largest number of a change or an event."""

    def measure_bytes(self) -> int:
        """Return the size on the disk, as far as it is known."""
