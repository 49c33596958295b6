"""Committer: brings what was computed to the store, in order, and then to those who asked.

Where the store is shared, it refuses what rests on a stream that another engine serves now: that stream alone is to be
read back, and its requests are to be sent again. If a commit fails, all that was computed on top of it is undone:
answers become refusals, streams are to be read back from the store, and nothing more is taken until the store can be
written again, which is tried from time to time.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lmr.core.log import LOGGER
from lmr.service.engine.changes import ChangeLog
from lmr.service.engine.delivery import Delivery
from lmr.service.engine.key_table import replay
from lmr.service.engine.records import DELETED, StreamRecord
from lmr.service.engine.scheduler import Job
from lmr.service.engine.step_types import Refused, StepAnswer, StepRequest, StoreFailed, StreamMoved
from lmr.service.engine.stream_types import ServiceEvent
from lmr.service.engine.telling import store_event
from lmr.service.engine.working.served import Served
from lmr.service.settings import ServiceSettings
from lmr.service.store.store_interface import StateStore
from lmr.service.store.stored_types import KeptAnswer, Transaction

MOST_COMMITS = 2  # that are not finished, before the next batch is computed
RETRY = 5.0  # seconds between attempts to write to a store that failed


@dataclass
class _Commit:
    """A transaction; the answers in ``served`` are given after it."""

    transaction: Transaction
    served: Served = field(default_factory=lambda: Served([]))


class Committer:
    """The commits that are under way; ``changed`` guards them."""

    def __init__(
        self,
        store: StateStore,
        settings: ServiceSettings,
        clock: Callable[[], float],
        changed: threading.Condition,
        log: ChangeLog,
        delivery: Delivery,
    ) -> None:
        self._store, self._settings, self._clock, self._changed = store, settings, clock, changed
        self._log, self._delivery = log, delivery
        self.at_intervals = store.path is not None and settings.durability == "interval"
        self.epoch = 0  # counts failures
        self.stale: dict[str, int] = {}  # streams to be read from the store, with the last epoch that is not valid
        self.failure = ""  # why the store cannot be written
        self.last_commit: float | None = None  # Unix time
        self.store_bytes = store.measure_bytes()
        self._commits: deque[_Commit] = deque()  # the first is being written
        self._pending, self._pending_since = Transaction(), 0.0  # answered, to be committed with the next interval
        self._failed_bytes, self._retry_at = 0, 0.0
        self._closing = False

    # What the compute thread asks and gives.

    @property
    def is_full(self) -> bool:
        """Whether the next batch has to wait."""
        return len(self._commits) >= MOST_COMMITS

    @property
    def is_idle(self) -> bool:
        """Whether all is committed."""
        return not self._commits and not self._pending

    @property
    def flush_time(self) -> float | None:
        """When what was answered has to be committed; None if all is."""
        return self._pending_since + self._settings.interval_s if self._pending else None

    def list_unsaved(self) -> set[str]:
        """The streams with changes that are not committed."""
        return set(self._pending.streams).union(*(commit.transaction.streams for commit in self._commits))

    def count_unsaved(self) -> int:
        """Requests that were answered and are not committed."""
        return sum(len(change.steps) for change in self._pending.streams.values())

    def count_in_flight(self) -> int:
        """Requests that were computed and are not answered."""
        return sum(len(commit.served.results) for commit in self._commits)

    def take(self, served: Served, epoch: int) -> None:
        """Take what came of a batch that was formed in ``epoch``. What needs no commit is answered at once."""
        with self._changed:
            lost = bool(served.transaction) and epoch != self.epoch
            now = not served.transaction or self.at_intervals
            if lost:
                self._note_stale(served.transaction)
            elif self.at_intervals:
                self._pending_since = self._pending_since if self._pending else self._clock()
                self._release(self._pending.extend(served.transaction))
                self._log.publish(served.events, served.records)
                for job, answer in served.results:
                    if isinstance(answer, StepAnswer):
                        self._delivery.keys.note_answer(job.task, answer)
            elif served.transaction:
                self._commits.append(_Commit(served.transaction, served))
            self._changed.notify_all()
        self._delivery.give(served.early)
        for job, error in served.failures:
            self._delivery.fail([job], error)
        if lost:
            self._refuse(served)
        elif now:
            self._delivery.give(served.results, keep_keys=self.at_intervals)
        if lost or now:
            self._delivery.report(served, None)

    def flush(self, pack: Callable[[Transaction], None]) -> None:
        """Commit what was answered before; ``pack`` adds the states to it."""
        with self._changed:
            transaction, epoch = self._pending, self.epoch
        pack(transaction)
        with self._changed:
            if epoch == self.epoch:
                self._commits.append(_Commit(transaction))
                self._pending = Transaction()
                self._changed.notify_all()

    def lose(self, streams: set[str], *, wait: bool) -> None:
        """Let streams be read from the store again, after what is under way; what is answered but not saved is lost."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: not self._commits)
            dropped = {stream: self._pending.streams.pop(stream) for stream in streams & self._pending.streams.keys()}
            self._release(Transaction(dropped))
            self.stale |= dict.fromkeys(streams, sys.maxsize)

    # The store thread.

    def run(self) -> None:
        """Commit until ``stop``."""
        while True:
            with self._changed:
                while not self._commits and not self._closing:
                    pause = max(0.0, self._retry_at - self._clock()) if self.failure else None
                    if pause == 0.0:
                        break
                    self._changed.wait(pause)
                if self._closing and not self._commits:
                    return
            self.work()

    def stop(self) -> None:
        """End ``run`` when all is committed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def work(self) -> bool:
        """Write what waits, and try a store that failed; False if there was nothing to write."""
        found = bool(self._commits)
        while self._commits:
            self._write(self._commits[0])
        self._try_store()
        return found

    def _write(self, commit: _Commit) -> None:
        started = self._clock()
        try:
            refused = self._store.commit(commit.transaction, self._settings.keys_per_stream)
        except Exception as error:
            LOGGER.warning("A commit failed: %s", error)
            self._undo(error)
            return
        served = commit.served
        with self._changed:
            self._commits.popleft()
            self.last_commit = time.time()
            with contextlib.suppress(OSError):  # the commit is done, whatever the file system says of the file
                self.store_bytes = self._store.measure_bytes()
            self._log.publish(
                [event for event in served.events if event.stream not in refused],
                [(before, record) for before, record in served.records if record.stream not in refused],
            )
            self._release(commit.transaction)
            self._note_stale(commit.transaction, refused)
            self._changed.notify_all()
        self._delivery.give([(job, value) for job, value in served.results if job.stream not in refused])
        for job, reason in served.doubtful:
            if job.stream not in refused:
                self._delivery.fail([job], reason)
        for job in served.jobs:
            if job.stream in refused:
                self._settle(job, refused[job.stream])
        self._delivery.report(served, self._clock() - started)

    def _settle(self, job: Job, kept: KeptAnswer | None) -> None:
        """Answer a request that the store refused: it was applied before, or its stream is served elsewhere."""
        try:
            if kept is None or not isinstance(job.task, StepRequest):
                raise StreamMoved(f"Stream {job.stream!r} is served by another replica now; send the request again.")
            self._delivery.give([(job, replay(job.task, kept))])
        except Refused as error:
            self._delivery.fail([job], error)

    def _note_stale(self, transaction: Transaction, streams: Collection[str] | None = None) -> None:
        """Let streams of a transaction, or all, be read from the store again, unless they were since."""
        for stream in {**transaction.streams, **transaction.epochs}:
            if streams is None or stream in streams:
                epoch = transaction.epochs.get(stream, 0)
                self.stale[stream] = max(epoch, self.stale.get(stream, epoch))

    def _undo(self, error: Exception) -> None:
        """All that is not committed is lost, and its streams are as the store has them."""
        with self._changed:
            lost, self._commits = list(self._commits), deque()
            transactions = [*(commit.transaction for commit in lost), self._pending]
            streams = {stream for transaction in transactions for stream in transaction.streams}
            for transaction in transactions:
                self._release(transaction)
            self._pending = Transaction()
            self.epoch += 1
            for transaction in transactions:
                self._note_stale(transaction)
            self._failed_bytes = max(self._failed_bytes, *(transaction.size for transaction in transactions))
            self._retry_at = self._clock() + RETRY
            self.failure = f"The store cannot be written ({error}); requests are answered without adapting."
            self._tell("ready", "degraded", self.failure)
            if self.at_intervals:
                with contextlib.suppress(sqlite3.Error):  # what cannot be written may not be readable either
                    self._publish_stored(streams)
            self._changed.notify_all()
        for commit in lost:
            self._refuse(commit.served)

    def _publish_stored(self, streams: set[str]) -> None:
        """Publish what the store knows of streams of which newer things were published."""
        for record in [record for stream, record in self._log.records.items() if stream in streams]:
            text = self._store.read_record(record.stream)
            stored = StreamRecord(record.stream, health=DELETED) if text is None else StreamRecord.read(text)
            self._log.publish([], [(record.health, stored)])

    def _try_store(self) -> None:
        """Let the service adapt again if the store takes as many bytes as it refused."""
        with self._changed:
            if not self.failure or self._clock() < self._retry_at:
                return
            size = self._failed_bytes
        try:
            self._store.probe(size)
        except Exception as error:
            LOGGER.info("The store still fails: %s", error)
            with self._changed:
                self._retry_at = self._clock() + RETRY
            return
        with self._changed:
            self.failure, self._failed_bytes = "", 0
            event = self._tell("degraded", "ready", "The store can be written again; requests adapt.")
            self._commits.append(_Commit(Transaction(events=[store_event(event)])))
            self._changed.notify_all()

    def _tell(self, before: str, after: str, words: str) -> ServiceEvent:
        event = ServiceEvent(self._log.take_number(), time.time(), "", "store", before, after, words)
        self._log.publish([event], [])
        return event

    def _release(self, transaction: Transaction) -> None:
        """The keys of a transaction are free: their answers are in the store, or lost."""
        for stream, change in transaction.streams.items():
            for kept in change.answers:
                self._delivery.keys.release(stream, kept.key)

    def _refuse(self, served: Served) -> None:
        words = f"{self.failure} This request was not applied; its stream is as it was before."
        if self._store.shared:  # other partitions may have written their part
            words = f"{self.failure} This request may have been applied: send it again with the same Idempotency-Key."
        self._delivery.fail([job for job, _ in served.results], StoreFailed(words))
        for job, error in served.doubtful:
            self._delivery.fail([job], error)
