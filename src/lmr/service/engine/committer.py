"""Committer: writes the changes of batches to the store, in order, and then sends their answers.

A shared store refuses changes of a stream that another engine serves now: that stream is read back, and its requests
must be sent again. If a commit fails, everything computed on top of it is undone: answers become errors, streams are
read back from the store, and nothing adapts until the store can be written again, which is tried from time to time.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection

from lmr.core.log import LOGGER
from lmr.service.engine.batch import Batch, BatchReport, Job
from lmr.service.engine.changes import ChangeLog
from lmr.service.engine.delivery import Delivery, replay
from lmr.service.engine.records import DELETED, StreamRecord
from lmr.service.engine.requests import Refused, StepAnswer, StepRequest, StoreFailed, StreamMoved
from lmr.service.engine.status import ServiceEvent
from lmr.service.settings import ServiceSettings
from lmr.service.store.addresses import StateStore
from lmr.service.store.stored_types import KeptAnswer, StoreError, Transaction

MOST_COMMITS = 2  # unfinished commits at which the next batch has to wait
RETRY = 5.0  # seconds between attempts to write to a store that failed


class Committer:
    """The commits that are not finished; the lock ``changed`` guards them."""

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
        self.at_intervals = settings.durability == "interval"
        self.epoch = 0  # counts failures
        self.stale: dict[str, int] = {}  # streams to read from the store, with the last epoch that is invalid
        self.failure = ""  # why the store cannot be written
        self.last_commit: float | None = None  # Unix time
        # Transactions with the batches whose answers are sent after them, if any; the first is being written.
        self._commits: deque[tuple[Transaction, Batch | None]] = deque()
        self._pending, self._pending_since = Transaction(), 0.0  # answered, to be committed with the next interval
        self._failed_bytes, self._retry_at = 0, 0.0
        self._closing = False

    # Called by the compute thread.

    @property
    def is_full(self) -> bool:
        """Return True if the next batch has to wait."""
        return len(self._commits) >= MOST_COMMITS

    @property
    def is_idle(self) -> bool:
        """Return True if everything is committed."""
        return not self._commits and not self._pending

    @property
    def flush_time(self) -> float | None:
        """Return the time at which the pending changes must be committed; None if there are none."""
        return self._pending_since + self._settings.interval_s if self._pending else None

    def list_unsaved(self) -> set[str]:
        """Return the streams with changes that are not committed."""
        return set(self._pending.streams).union(*(transaction.streams for transaction, _ in self._commits))

    def count_unsaved(self) -> int:
        """Return the number of requests that were answered and are not committed."""
        return sum(len(change.steps) for change in self._pending.streams.values())

    def count_new(self) -> int:
        """Return the number of streams that were created, less those that were deleted, and are not published yet."""
        pairs = [pair for _, batch in self._commits if batch is not None for pair in batch.records]
        return sum(not before for before, _ in pairs) - sum(record.health == DELETED for _, record in pairs)

    def count_in_flight(self) -> int:
        """Return the number of requests that were computed and are not answered."""
        return sum(not job.early for _, batch in self._commits if batch is not None for job in batch.jobs)

    def take(self, batch: Batch) -> None:
        """Queue the changes of a computed batch; what needs no commit is answered at once."""
        early = [job for job in batch.jobs if job.early]
        others = [job for job in batch.jobs if not job.early]
        with self._changed:
            lost = bool(batch.transaction) and batch.epoch != self.epoch
            now = not batch.transaction or self.at_intervals
            if lost:
                self._note_stale(batch.transaction)
            elif self.at_intervals:
                self._pending_since = self._pending_since if self._pending else self._clock()
                self._release(self._pending.extend(batch.transaction))
                self._log.publish(batch.events, batch.records)
                for job in others:
                    if isinstance(job.result, StepAnswer):
                        self._delivery.note_answer(job.task, job.result)
            elif batch.transaction:
                self._commits.append((batch.transaction, batch))
            self._changed.notify_all()
        self._delivery.send(early)
        if lost:
            self._refuse(batch)
        elif now:
            self._delivery.send(others, keep_keys=self.at_intervals)
        if lost or now:
            self._delivery.report(batch.report(None))

    def flush(self, pack: Callable[[Transaction], None]) -> None:
        """Commit the pending changes; ``pack`` adds the states to them."""
        with self._changed:
            transaction, epoch = self._pending, self.epoch
        pack(transaction)
        with self._changed:
            if epoch == self.epoch:
                self._commits.append((transaction, None))
                self._pending = Transaction()
                self._changed.notify_all()

    def degrade(self, error: Exception) -> None:
        """Adapt nothing until the store can be written again, which is tried from time to time."""
        with self._changed:
            self._retry_at = self._clock() + RETRY
            if self.failure:
                return
            self.failure = f"The store cannot be used ({error}); requests that adapt are refused."
            self._publish_event("ready", "degraded", self.failure)
            self._changed.notify_all()

    def lose(self, streams: set[str], *, wait: bool) -> None:
        """Read streams from the store again, after the unfinished commits; their pending changes are lost."""
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
        """End ``run`` when everything is committed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def work(self) -> bool:
        """Write all queued commits, and try a store that failed; return False if nothing was queued."""
        found = bool(self._commits)
        while self._commits:
            self._write(*self._commits[0])
        self._try_store()
        return found

    def _write(self, transaction: Transaction, batch: Batch | None) -> None:
        started = self._clock()
        try:
            refused = self._store.commit(transaction, self._settings.keys_per_stream)
        except Exception as error:
            LOGGER.warning("A commit failed: %s", error)
            self._undo(error)
            return
        with self._changed:
            self._commits.popleft()
            self.last_commit = time.time()
            if batch is not None:
                events = [event for event in batch.events if event.stream not in refused]
                self._log.publish(events, [pair for pair in batch.records if pair[1].stream not in refused])
            self._release(transaction)
            self._note_stale(transaction, refused)
            self._changed.notify_all()
        seconds = self._clock() - started
        if batch is None:
            if refused:
                with self._changed, contextlib.suppress(StoreError):
                    self._publish_stored(set(refused))
            self._delivery.report(BatchReport(0, 0, 0, 0.0, seconds))
            return
        for job in batch.jobs:
            if job.stream in refused:
                self._replace_result(job, refused[job.stream])
        self._delivery.send([job for job in batch.jobs if not job.early])
        self._delivery.report(batch.report(seconds))

    def _replace_result(self, job: Job, kept: KeptAnswer | None) -> None:
        """Change the result of a request that the store refused: it was applied before, or its stream has moved."""
        job.result = job.error = None
        try:
            if kept is None or not isinstance(job.task, StepRequest):
                raise StreamMoved(f"Stream {job.stream!r} is served by another replica now; send the request again.")
            job.result = replay(job.task, kept)
        except Refused as error:
            job.error = error

    def _note_stale(self, transaction: Transaction, streams: Collection[str] | None = None) -> None:
        """Mark all streams of a transaction, or some, to be read from the store, unless they were read since."""
        for stream in {**transaction.streams, **transaction.epochs}:
            if streams is None or stream in streams:
                epoch = transaction.epochs.get(stream, 0)
                self.stale[stream] = max(epoch, self.stale.get(stream, epoch))

    def _undo(self, error: Exception) -> None:
        """Drop everything that is not committed; its streams are as the store has them."""
        with self._changed:
            lost, self._commits = list(self._commits), deque()
            transactions = [*(transaction for transaction, _ in lost), self._pending]
            streams = {stream for transaction in transactions for stream in transaction.streams}
            for transaction in transactions:
                self._release(transaction)
                self._note_stale(transaction)
            self._pending = Transaction()
            self.epoch += 1
            self._failed_bytes = max(self._failed_bytes, *(transaction.size for transaction in transactions))
            self.degrade(error)
            if self.at_intervals:
                with contextlib.suppress(StoreError):  # a store that cannot be written may not be readable either
                    self._publish_stored(streams)
            self._changed.notify_all()
        for _, batch in lost:
            if batch is not None:
                self._refuse(batch)

    def _publish_stored(self, streams: set[str]) -> None:
        """Publish the stored records of streams whose published record was rolled back."""
        for record in [record for stream, record in self._log.records.items() if stream in streams]:
            stored = self._store.read_record(record.stream)
            self._log.publish([], [(record.health, StreamRecord.read(record.stream, stored))])

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
            event = self._publish_event("degraded", "ready", "The store can be written again; requests adapt.")
            self._commits.append((Transaction(events=[("", event.to_json())]), None))
            self._changed.notify_all()

    def _publish_event(self, before: str, after: str, message: str) -> ServiceEvent:
        event = ServiceEvent(self._log.take_number(), time.time(), "", "store", before, after, message)
        self._log.publish([event], [])
        return event

    def _release(self, transaction: Transaction) -> None:
        """Release the keys of a transaction: their answers are in the store, or lost."""
        for stream, change in transaction.streams.items():
            for kept in change.answers:
                self._delivery.release(stream, kept.key)

    def _refuse(self, batch: Batch) -> None:
        message = f"{self.failure} This request was not applied; its stream is unchanged."
        if self._store.shared:  # a connection that broke during a commit may have written it
            message = f"{self.failure} This request may have been applied: send it again with the same Idempotency-Key."
        for job in batch.jobs:
            if not job.early:
                self._delivery.fail([job], job.error or StoreFailed(message))
