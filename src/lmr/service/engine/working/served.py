"""What a batch is served in and what comes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from lmr.core.errors import LmrError
from lmr.service.engine.records import StreamRecord
from lmr.service.engine.scheduler import Job
from lmr.service.engine.step_types import ComputeFailed, Refused, StoreFailed
from lmr.service.engine.stream_types import ServiceEvent
from lmr.service.store.stored_types import Transaction


@dataclass(frozen=True)
class Situation:
    """What the worker has to know of the world around it for one batch."""

    adapt: bool  # False while the store cannot be written
    stay: Collection[str]  # residents that cannot make room
    needed: Collection[str]  # streams with waiting requests
    unsaved: Collection[str]  # streams whose last state is not committed yet
    wall: float  # Unix time


@dataclass
class Served:
    """What came of a batch. ``early`` are answers that changed nothing and need not wait for the commit."""

    jobs: list[Job]
    transaction: Transaction = field(default_factory=Transaction)
    results: list[tuple[Job, Any]] = field(default_factory=list)
    early: list[tuple[Job, Any]] = field(default_factory=list)
    failures: list[tuple[Job, Exception]] = field(default_factory=list)
    doubtful: list[tuple[Job, Exception]] = field(default_factory=list)  # failures, unless the stream is elsewhere
    events: list[ServiceEvent] = field(default_factory=list)
    records: list[tuple[str, StreamRecord]] = field(default_factory=list)  # with the health before
    images: int = 0
    steps: int = 0
    seconds: float = 0.0

    def wait_for_store(self) -> None:
        """Give nothing before the store has confirmed that this engine still serves the streams it rests on."""
        self.results += self.early
        self.doubtful += self.failures
        self.early, self.failures = [], []


def name_failure(error: Exception) -> Refused:
    """An error as a reason for which a request was not served."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, (sqlite3.Error, OSError)):
        return StoreFailed(f"The store cannot be read: {error}.")
    return ComputeFailed(str(error) if isinstance(error, LmrError) else f"The method failed: {error!r}.")
