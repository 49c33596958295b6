"""StateStore: what the engine needs of a store, wherever that store is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lmr.service.store.store import Refusals
from lmr.service.store.stored_types import Claim, KeptAnswer, StoredState, Transaction


class StateStore(Protocol):
    """A store as ``Store`` describes it, method by method. Where it cannot be used: sqlite3.Error or OSError.

    ``shared`` says that other engines write it too. Then an engine asks the store before it believes its own memory.
    """

    @property
    def path(self) -> Path | None:
        """Where it is; None if it is in memory alone."""

    @property
    def shared(self) -> bool:
        """Whether others write it too."""

    def claim(self, stream: str) -> Claim:
        """Begin to serve a stream."""

    def commit(self, transaction: Transaction, keys: int = 64) -> Refusals:
        """Write; gives the streams of which nothing was written."""

    def probe(self, size: int) -> None:
        """Write and remove so many bytes."""

    def close(self) -> None:
        """Use it no more."""

    def read_record(self, stream: str) -> str | None:
        """The record of a stream."""

    def read_state(self, stream: str) -> StoredState | None:
        """The state of a stream."""

    def read_step(self, stream: str, seq: int) -> str | None:
        """The note of one request."""

    def read_steps(self, stream: str) -> list[str]:
        """The notes of the last requests."""

    def read_answer(self, stream: str, key: str) -> KeptAnswer | None:
        """The answer that is kept under a key."""

    def read_events(self, stream: str, limit: int = 100) -> list[str]:
        """The last events of a stream."""

    def list_records(self, after: str, limit: int) -> list[str]:
        """The records of streams in the order of their names."""

    def count_health(self) -> dict[str, int]:
        """How many streams there are of each health."""

    def find_last_change(self) -> int:
        """The largest number of a change or an event."""

    def measure_bytes(self) -> int:
        """The size on the disk, as far as it is known."""
