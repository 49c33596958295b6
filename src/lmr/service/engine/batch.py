"""Batch: jobs of different streams that are computed together, and their results."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from lmr.core.errors import LmrError
from lmr.service.engine.records import StreamRecord
from lmr.service.engine.requests import ComputeFailed, Refused, StoreFailed
from lmr.service.engine.status import EventKind, ServiceEvent
from lmr.service.store.stored_types import StoreError, StreamChange, Transaction


@dataclass(eq=False)
class Job:
    """A request or a task of one stream. ``images`` is 0 for a task."""

    stream: str
    task: Any  # a StepRequest or a StreamTask
    images: int
    arrived: float
    deadline: float = math.inf
    future: Future[Any] = field(default_factory=Future)
    number: int = 0  # in the order of arrival
    started: float = 0.0  # the time at which its batch was formed
    result: Any = None
    error: Refused | None = None
    early: bool = False  # it changed nothing, so its result or error need not wait for the commit

    @property
    def weight(self) -> int:
        """Return the room it takes in the queue, in images."""
        return max(1, self.images)


@dataclass(frozen=True)
class BatchReport:
    """Measurements of one batch."""

    images: int
    streams: int
    steps: int  # streams that adapted
    seconds: float
    commit_seconds: float | None  # None if nothing was committed with it


@dataclass(eq=False)
class Batch:
    """Jobs of different streams, which get their results, and the transaction after which these are sent.

    The first fields say how the engine was when the batch was formed.
    """

    jobs: list[Job]
    late: list[Job]  # their deadline has passed
    flush: bool  # commit the pending changes of earlier batches, too
    failure: str  # why the store cannot be written, so that requests which adapt are refused
    pinned: Collection[str]  # residents that must keep their rows
    needed: Collection[str]  # streams with queued requests
    unsaved: Collection[str]  # streams with changes that are not committed
    time: float  # Unix time
    epoch: int  # of the committer
    take_number: Callable[[], int]  # for changes and events
    room: int = sys.maxsize  # new streams that may be created
    store_error: Exception | None = None  # of a stream that could not be read
    transaction: Transaction = field(default_factory=Transaction)
    events: list[ServiceEvent] = field(default_factory=list)
    records: list[tuple[str, StreamRecord]] = field(default_factory=list)  # with the health before
    images: int = 0
    steps: int = 0
    seconds: float = 0.0

    def stamp(self, record: StreamRecord) -> StreamRecord:
        """Return a changed record with its time and number."""
        return replace(record, updated=self.time, change=self.take_number())

    def change(self, before: str, record: StreamRecord) -> StreamRecord:
        """Add a changed record, with the ``before`` health of its stream; return it with its time and number."""
        record = self.stamp(record)
        self.records.append((before, record))
        return record

    def finish(self, job: Job, result: Any, change: StreamChange) -> None:
        """Set the result of a job that changes its stream."""
        self.transaction.add(job.stream, change)
        job.result = result

    def answer(self, job: Job, result: Any) -> None:
        """Set the result of a job that changes nothing."""
        job.result, job.early = result, True

    def refuse(self, job: Job, error: Exception) -> None:
        """Set the error of a job that failed and changes nothing."""
        job.early = True
        if isinstance(error, Refused):
            job.error = error
        elif isinstance(error, StoreError):
            self.store_error = error
            job.error = StoreFailed(f"The store cannot be read: {error}.")
        else:
            job.error = ComputeFailed(str(error) if isinstance(error, LmrError) else f"The method failed: {error!r}.")

    def add_event(
        self, stream: str, kind: EventKind, health: tuple[str, str], message: str, signals: dict[str, Any]
    ) -> None:
        """Add an event; ``health`` is that before and after it."""
        number = self.take_number()
        event = ServiceEvent(number, self.time, stream, kind, *health, message, signals)
        self.events.append(event)
        self.transaction.events.append((stream, event.to_json()))

    def report(self, commit_seconds: float | None) -> BatchReport:
        """Return the measurements."""
        return BatchReport(self.images, len(self.jobs), self.steps, self.seconds, commit_seconds)
