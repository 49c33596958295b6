"""StateStore: the interface of a store for the engine."""

from __future__ import annotations

from typing import Protocol

from lmr.service.store.stored_types import (
    Claim,
    KeptAnswer,
    Refusals,
    StoredEvent,
    StoredRecord,
    StoreSummary,
    Transaction,
)


class StateStore(Protocol):
    """The states, records, kept answers and events of streams. A store that cannot be used raises StoreError.

    Writing is for one thread, reading for any. ``SqlStore`` implements it for SQLite and PostgreSQL.
    """

    @property
    def durable(self) -> bool:
        """Return False if the store is in memory and ends with the process."""

    @property
    def shared(self) -> bool:
        """Return True if other engines write it too. Then an engine asks it before it trusts its own memory."""

    def claim(self, stream: str) -> Claim:
        """Begin to serve a stream, and read it. In a shared store, whoever served it before cannot commit any more."""

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        """Write a transaction, or nothing and raise StoreError.

        The answers to the last ``keys`` requests with a key are kept for each stream. Returns the refused streams,
        which are served elsewhere or whose request was applied before; there are none unless the store is shared.
        """

    def probe(self, size: int) -> None:
        """Write and remove ``size`` bytes."""

    def follow(self, seconds: float) -> list[StoredEvent]:
        """Return events that other engines committed; wait for them up to some seconds."""

    def close(self) -> None:
        """Close the store."""

    def read_record(self, stream: str) -> StoredRecord | None:
        """Return the record of a stream."""

    def read_steps(self, stream: str, seq: int | None = None) -> list[str]:
        """Return the notes of the last requests, oldest first, or of one of them; damaged ones are left out."""

    def read_answer(self, stream: str, key: str) -> KeptAnswer | None:
        """Return the answer that is kept under a key; DamagedText if its bytes were damaged."""

    def read_events(self, stream: str, limit: int = 100) -> list[str]:
        """Return the last events of a stream, or with "" those of the service, oldest first, without damaged ones."""

    def list_records(self, after: str, limit: int) -> list[tuple[str, StoredRecord]]:
        """Return the names and records of streams whose names come after ``after``, in the order of the names."""

    def summarise(self) -> StoreSummary:
        """Count the streams, and measure the store."""
