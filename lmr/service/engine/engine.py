"""Engine: takes requests of streams, answers them in batches, and keeps the states; it knows nothing of HTTP.

Requests wait in the scheduler. The compute thread forms a batch, the worker serves it, and the store thread commits
what changed and then gives the answers, while the next batch is computed. If a commit fails, all that was computed on
top of it is undone: its streams are read back from the store, and the service answers without adapting until the store
can be written again.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lmr.core.errors import LmrError
from lmr.core.log import LOGGER
from lmr.core.method import Method
from lmr.service.engine.changes import ChangeLog
from lmr.service.engine.key_table import KeyTable, replay
from lmr.service.engine.rates import Rates
from lmr.service.engine.records import DELETED, StepNote, StreamRecord
from lmr.service.engine.scheduler import Job, Scheduler
from lmr.service.engine.step_types import (
    BadInput,
    BatchReport,
    ComputeFailed,
    DeadlinePassed,
    NotReady,
    Refused,
    StepAnswer,
    StepRequest,
    StoreFailed,
    UnknownStream,
)
from lmr.service.engine.stream_types import (
    Changes,
    EngineState,
    Overview,
    ServiceEvent,
    StreamAction,
    StreamDetail,
    StreamStatus,
)
from lmr.service.engine.tasks import ActTask, LabelTask, ReadTask, Task, WriteTask
from lmr.service.engine.telling import read_event, store_event
from lmr.service.engine.worker import Served, Situation, Worker
from lmr.service.service_settings import ServiceSettings
from lmr.service.store.store import Store
from lmr.service.store.stored_types import Transaction

MOST_COMMITS = 2  # computed batches whose commits are not finished, before the next one is computed
RETRY = 5.0  # seconds between attempts to write to a store that failed
BLOCKED = 0.05  # seconds after which a batch that found no room is formed again
LAST_ANSWERS = 20  # images, in the detail of a stream

T = TypeVar("T")


@dataclass
class _Batch:
    """What the compute thread does next."""

    jobs: list[Job]
    late: list[Job]  # whose deadline has passed
    situation: Situation
    epoch: int
    flush: bool  # whether to commit what waits for that


@dataclass
class _Commit:
    """What the store thread does next; the answers in ``served`` are given after it."""

    transaction: Transaction
    served: Served = field(default_factory=lambda: Served([]))


class Engine:
    """The engine of the service. Every call is safe from any thread; refusals are set on the futures.

    Without a store the states are kept in the rows of the method alone: a new stream that finds none free is refused.
    """

    def __init__(
        self,
        method: Method,
        names: Sequence[str],
        settings: ServiceSettings,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        threads: bool = True,
    ) -> None:
        _check_method(method, names)
        self.method, self.names, self.settings, self.clock = method, list(names), settings, clock
        self._durable, self._store = store is not None, store or Store(None, {})
        self._at_intervals = self._durable and settings.durability == "interval"
        last = max(self._store.find_last_change(), int(1000 * time.time()))  # above the numbers of any run before
        self._log, self._rates, self._keys = ChangeLog(last, self._store.count_health()), Rates(), KeyTable()
        self._scheduler = Scheduler(settings)
        self._worker = Worker(method, names, settings, self._store, clock, self._log.take_number)
        self._jobs: dict[Future[Any], Job] = {}  # that wait
        self._computing: list[Job] = []
        self._commits: deque[_Commit] = deque()  # the first is being written
        self._pending, self._pending_since = Transaction(), 0.0  # with commits at intervals
        self._epoch, self._stale = 0, set[str]()  # commits that failed; streams to be read from the store again
        self._failure, self._failed_bytes, self._retry_at = "", 0, 0.0
        self._last_commit: float | None = None
        self._store_bytes = self._store.measure_bytes()
        self._phase: EngineState = "loading"
        self._stopping = self._blocked = False
        self._listeners: list[Callable[[BatchReport], None]] = []
        self._changed = threading.Condition()  # guards all of the above but the worker
        self._use_threads = threads
        self._compute_thread = threading.Thread(target=self._run_compute, name="lmr-compute", daemon=True)
        self._store_thread = threading.Thread(target=self._run_store, name="lmr-store", daemon=True)
        self._reader = ThreadPoolExecutor(1, "lmr-reader") if threads else None

    # Requests.

    def start(self) -> None:
        """Start the compute thread and the store thread."""
        with self._changed:
            if self._phase != "loading":
                raise LmrError("The engine was started before; make a new one.")
            self._phase = "ready"
        if self._use_threads:
            self._compute_thread.start()
            self._store_thread.start()

    def submit(self, request: StepRequest) -> Future[StepAnswer]:
        """Queue a request."""
        future: Future[StepAnswer] = Future()
        try:
            self._check_request(request)
            with self._changed:
                self._check_ready()
                kept = self._keys.take(request)
            try:
                if kept is None and request.key is not None:
                    found = self._store.read_answer(request.stream, request.key)
                    kept = None if found is None else replay(request, found)
                    if found is not None:
                        self._release(request)
                if kept is not None:
                    future.set_result(kept)
                else:
                    self._add(request.stream, request, future, len(request.images), request.deadline)
            except BaseException:
                self._release(request)
                raise
        except sqlite3.Error as error:
            future.set_exception(StoreFailed(f"The store cannot be read: {error}."))
        except Refused as error:
            future.set_exception(error)
        return future

    def drop(self, future: Future[StepAnswer]) -> bool:
        """The client has gone: True if its request still waited and was dropped, so that nothing adapts."""
        with self._changed:
            job = self._jobs.get(future)
            if job is None or not self._scheduler.drop(job):
                return False
            self._forget_job(job)
        future.cancel()
        return True

    # Operators.

    def act(self, stream: str, action: StreamAction) -> Future[StreamStatus]:
        """What an operator asks for, after the requests of the stream that arrived before.

        The status of a stream that was deleted has the health "deleted".
        """
        return self._ask(stream, ActTask(action))

    def read_state(self, stream: str) -> Future[bytes]:
        """The file that ``method.save`` writes for the stream."""
        return self._ask(stream, ReadTask())

    def write_state(self, stream: str, content: bytes) -> Future[StreamStatus]:
        """Give a stream the state in such a file."""
        return self._ask(stream, WriteTask(content))

    def add_labels(self, stream: str, seq: int, labels: Sequence[str | None]) -> Future[StreamStatus]:
        """True labels of the images of request ``seq``, for the running accuracy alone; None where it is not known."""
        return self._ask(stream, LabelTask(seq, tuple(labels)))

    # Reading.

    def find(self, stream: str) -> Future[StreamDetail]:
        """One stream, looked at closely."""
        return self._read(lambda: self._find(stream))

    def list_streams(self, after: str = "", limit: int = 100) -> Future[list[StreamStatus]]:
        """Streams in the order of their names, those after the name ``after``."""
        return self._read(lambda: self._list(after, limit))

    def look(self) -> Overview:
        """The engine at a glance; never waits."""
        with self._changed:
            by_health = {health: count for health, count in self._log.by_health.items() if count}
            rates: dict[str, Any] = self._rates.describe(self.clock())
            return Overview(
                state=self._find_state(),
                reason=self._failure,
                streams=sum(by_health.values()),
                resident=len(self._worker.residents),
                by_health=by_health,
                queue_images=self._scheduler.images,
                queue_requests=self._scheduler.requests,
                in_flight=len(self._computing) + sum(len(commit.served.results) for commit in self._commits),
                store_bytes=self._store_bytes,
                durable=self._durable,
                last_commit=self._last_commit,
                unsaved=sum(len(change.steps) for change in self._pending.streams.values()),
                change=self._log.last,
                **rates,
            )

    def read_changes(self, after: int, limit: int) -> Changes:
        """Events and streams that changed after change number ``after``, at most ``limit`` of each."""
        with self._changed:
            upto, events, records, lost = self._log.read(after, limit)
            return Changes(after, upto, events, [self._describe(record) for record in records], lost)

    def listen(self, callback: Callable[[BatchReport], None]) -> None:
        """Call ``callback`` after every batch, from a thread of the engine."""
        self._listeners.append(callback)

    # The end.

    def drain(self, seconds: float) -> bool:
        """Take no more requests, and finish those that wait; False if they took longer and were refused."""
        with self._changed:
            if self._phase != "closed":
                self._phase = "draining"
            self._changed.notify_all()
            if self._use_threads and self._compute_thread.is_alive():
                done = self._changed.wait_for(self._is_idle, seconds)
            else:
                end = self.clock() + seconds
                while not self._is_idle() and self.clock() <= end and self.run_once():
                    pass
                done = self._is_idle()
            left = self._scheduler.clear()
        self._refuse(left, NotReady("The service is being stopped; try again later."))
        return done

    def close(self) -> None:
        """Refuse what waits, finish and commit what does not, end the threads and close the store."""
        with self._changed:
            if self._phase == "closed":
                return
            started, self._phase = self._phase != "loading", "closed"
            self._stopping = True
            left = self._scheduler.clear()
            self._changed.notify_all()
        self._refuse(left, NotReady("The service has been stopped."))
        if self._reader is not None:
            self._reader.shutdown()
        if self._use_threads and started:
            self._compute_thread.join()
            with self._changed:
                self._commits.append(_Commit(Transaction()))  # the last one, which ends the store thread
                self._changed.notify_all()
            self._store_thread.join()
        elif started:
            self.run_once()
        self._store.close()

    def run_once(self) -> bool:
        """Without threads: form, compute and commit one batch; False if there was nothing to do."""
        with self._changed:
            batch = self._form()
        if batch is not None:
            self._work(batch)
        while self._commits:
            self._write(self._commits[0])
        self._try_store()
        return batch is not None

    # Requests on their way to the worker.

    def _check_request(self, request: StepRequest) -> None:
        try:
            self.method.classifier.check(request.images)
        except LmrError as error:
            raise BadInput(str(error)) from error
        count, places, sent = len(request.images), request.places, request.sent
        if count > self.settings.max_images:
            raise BadInput(f"Expected at most {self.settings.max_images} images in a request, got {count}.")
        if not request.stream:
            raise BadInput("Expected a name for the stream, got an empty one.")
        if places and (len(places) != count or max(places) >= (sent or count)):
            raise BadInput(f"Expected {count} places below {sent or count} for {count} images, got {list(places)}.")

    def _check_ready(self) -> None:
        if self._phase != "ready":
            raise NotReady(f"The service is {self._phase}; try again later.")

    def _ask(self, stream: str, task: Task) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            self._add(stream, task, future)
        except Refused as error:
            future.set_exception(error)
        return future

    def _add(
        self, stream: str, task: Task, future: Future[Any], images: int = 0, deadline: float | None = None
    ) -> None:
        with self._changed:
            self._check_ready()
            now = self.clock()
            end = now + self.settings.timeout_ms / 1000 if deadline is None else deadline
            job = Job(stream, task, images, now, end, future=future)
            self._scheduler.add(job)
            self._jobs[future] = job
            self._changed.notify_all()

    def _forget_job(self, job: Job) -> None:
        """A job does not wait any longer and will not be served."""
        self._jobs.pop(job.future, None)
        if isinstance(job.task, StepRequest):
            self._keys.release(job.stream, job.task.key)

    def _release(self, request: StepRequest) -> None:
        with self._changed:
            self._keys.release(request.stream, request.key)

    def _refuse(self, jobs: Sequence[Job], error: Refused) -> None:
        with self._changed:
            for job in jobs:
                self._forget_job(job)
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)

    # The compute thread.

    def _run_compute(self) -> None:
        while True:
            with self._changed:
                batch = self._form()
                while batch is None and (self._pending or not self._stopping):
                    self._changed.wait(self._find_pause())
                    batch = self._form()
            if batch is None:
                return
            self._work(batch)

    def _form(self) -> _Batch | None:
        """What to do now; None if nothing, or not yet."""
        now, hurry = self.clock(), self._phase != "ready"
        self._worker.forget(self._stale)
        self._stale.clear()
        late = self._scheduler.expire(now)
        unsaved = set(self._pending.streams).union(*(commit.transaction.streams for commit in self._commits))
        plan = self._worker.residents.plan(
            lambda stream, one: stream not in unsaved and (self._durable or not one.exists)
        )
        fits = plan.admit if self._durable else lambda stream: True
        jobs: list[Job] = []
        if len(self._commits) < MOST_COMMITS:
            jobs = self._scheduler.form(now, fits, hurry=hurry)
        next_time = self._scheduler.find_next_time()
        self._blocked = not jobs and next_time is not None and next_time <= now
        for job in jobs:
            self._jobs.pop(job.future, None)
        running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        for job in jobs:
            if job not in running:
                self._forget_job(job)
        due = now >= self._pending_since + self.settings.interval_s
        flush = bool(self._pending) and (due or hurry or self._blocked) and len(self._commits) < MOST_COMMITS
        if not (running or late or flush):
            return None
        self._computing = running
        situation = Situation(
            adapt=not self._failure,
            may_go=plan.may_go - {job.stream for job in running},
            needed=self._scheduler.streams,
            unsaved=unsaved,
            wall=time.time(),
        )
        return _Batch(running, late, situation, self._epoch, flush)

    def _find_pause(self) -> float | None:
        """Seconds until there may be something to do although nothing happens; None if there is nothing to wait for."""
        if self._blocked:
            return BLOCKED
        times = [self._scheduler.find_next_time()]
        times += [self._pending_since + self.settings.interval_s] if self._pending else []
        known = [one for one in times if one is not None]
        return max(0.0, min(known) - self.clock()) if known else None

    def _work(self, batch: _Batch) -> None:
        """Serve a batch and pass on what came of it."""
        self._refuse(batch.late, DeadlinePassed("The request waited longer than it may; nothing was adapted."))
        try:
            if batch.jobs:
                self._pass_on(batch, self._worker.serve(batch.jobs, batch.situation))
            if batch.flush:
                self._flush()
        except Exception as error:
            LOGGER.exception("A batch failed")
            self._abandon(batch, error)
        finally:
            with self._changed:
                self._computing = []
                self._changed.notify_all()

    def _pass_on(self, batch: _Batch, served: Served) -> None:
        """To the store thread, or at once to those who asked where there is nothing to commit first."""
        with self._changed:
            self._scheduler.note_batch(served.images, served.seconds)
            lost = bool(served.transaction) and batch.epoch != self._epoch
            if lost:
                self._stale |= set(served.transaction.streams)
            elif self._at_intervals:
                self._pending_since = self._pending_since if self._pending else self.clock()
                self._pending.extend(served.transaction)
                self._log.publish(served.events, served.records)
                for job, answer in served.results:
                    if isinstance(answer, StepAnswer):
                        self._keys.note_answer(job.task, answer)
            elif served.transaction:
                self._commits.append(_Commit(served.transaction, served))
            self._computing = []
            self._changed.notify_all()
        self._give(served.early)
        for job, error in served.failures:
            self._fail([job], error)
        if lost:
            self._fail([job for job, _ in served.results], _say_failed(self._failure))
        elif self._at_intervals or not served.transaction:
            self._give(served.results, keep_keys=self._at_intervals)
        if lost or self._at_intervals or not served.transaction:
            self._report(served, None)

    def _flush(self) -> None:
        """Commit what was answered before it was committed."""
        with self._changed:
            transaction, epoch = self._pending, self._epoch
        self._worker.pack(transaction)
        with self._changed:
            if epoch == self._epoch:
                self._commits.append(_Commit(transaction))
                self._pending = Transaction()
                self._changed.notify_all()

    def _abandon(self, batch: _Batch, error: Exception) -> None:
        """A batch failed where nothing should: its streams are read from the store again, after what is under way."""
        self._fail(batch.jobs, ComputeFailed(f"The engine failed: {error!r}."))
        if not self._durable:
            return
        with self._changed:
            if self._use_threads:
                self._changed.wait_for(lambda: not self._commits)
            for job in batch.jobs:
                self._pending.streams.pop(job.stream, None)
                self._stale.add(job.stream)

    # The store thread.

    def _run_store(self) -> None:
        while True:
            with self._changed:
                while not self._commits:
                    pause = max(0.0, self._retry_at - self.clock()) if self._failure else None
                    if pause == 0.0:
                        break
                    self._changed.wait(pause)
                commit = self._commits[0] if self._commits else None
            if commit is None:
                self._try_store()
            elif not commit.transaction:
                return
            else:
                self._write(commit)

    def _write(self, commit: _Commit) -> None:
        """Commit, and give the answers that waited for it."""
        started = self.clock()
        try:
            self._store.commit(commit.transaction, self.settings.keys_per_stream)
        except Exception as error:
            LOGGER.exception("A commit failed")
            self._undo_commits(error)
            return
        served = commit.served
        with self._changed:
            self._commits.popleft()
            self._last_commit, self._store_bytes = time.time(), self._store.measure_bytes()
            self._log.publish(served.events, served.records)
            for stream, change in commit.transaction.streams.items():
                for kept in change.answers:
                    self._keys.release(stream, kept.key)
            self._changed.notify_all()
        self._give(served.results)
        self._report(served, self.clock() - started)

    def _undo_commits(self, error: Exception) -> None:
        """All that is not committed is lost, and its streams are as the store has them."""
        with self._changed:
            lost = [commit for commit in self._commits if commit.transaction]
            ends = [commit for commit in self._commits if not commit.transaction]
            transactions = [commit.transaction for commit in lost] + [self._pending]
            streams = {stream for transaction in transactions for stream in transaction.streams}
            for transaction in transactions:
                for stream, change in transaction.streams.items():
                    for kept in change.answers:
                        self._keys.release(stream, kept.key)
            self._commits, self._pending = deque(ends), Transaction()
            self._epoch += 1
            self._stale |= streams
            self._failed_bytes = max(self._failed_bytes, *(transaction.size for transaction in transactions))
            self._failure = f"The store cannot be written ({error}); requests are answered without adapting."
            self._retry_at = self.clock() + RETRY
            self._tell("ready", "degraded", self._failure)
            if self._at_intervals:
                self._read_back(streams)
            self._changed.notify_all()
        for commit in lost:
            self._fail([job for job, _ in commit.served.results], _say_failed(self._failure))

    def _read_back(self, streams: set[str]) -> None:
        """Publish what the store knows of streams of which newer things were published."""
        known = [record for stream, record in self._log.records.items() if stream in streams]
        for record in known:
            text = self._store.read_record(record.stream)
            stored = StreamRecord(record.stream, health=DELETED) if text is None else StreamRecord.read(text)
            self._log.publish([], [(record.health, stored)])

    def _try_store(self) -> None:
        """While the store fails, try from time to time whether it can be written again."""
        with self._changed:
            if not self._failure or self.clock() < self._retry_at:
                return
            size = self._failed_bytes
        try:
            self._store.probe(size)
        except Exception as error:
            LOGGER.info("The store still fails: %s", error)
            with self._changed:
                self._retry_at = self.clock() + RETRY
            return
        with self._changed:
            self._failure, self._failed_bytes = "", 0
            event = self._tell("degraded", "ready", "The store can be written again; requests adapt.")
            self._commits.append(_Commit(Transaction(events=[store_event(event)])))
            self._changed.notify_all()

    def _tell(self, before: str, after: str, words: str) -> ServiceEvent:
        event = ServiceEvent(self._log.take_number(), time.time(), "", "store", before, after, words)
        self._log.publish([event], [])
        return event

    # Answers.

    def _give(self, results: Sequence[tuple[Job, Any]], *, keep_keys: bool = False) -> None:
        now = self.clock()
        with self._changed:
            for job, _ in results:
                if not keep_keys:
                    self._forget_job(job)
                if isinstance(job.task, StepRequest):
                    self._rates.add_latency(now - job.arrived)
        for job, value in results:
            job.future.set_result(self._describe(value) if isinstance(value, StreamRecord) else value)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        with self._changed:
            for job in jobs:
                self._forget_job(job)
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)

    def _report(self, served: Served, commit_seconds: float | None) -> None:
        report = BatchReport(served.images, len(served.jobs), served.steps, served.seconds, commit_seconds)
        with self._changed:
            self._rates.add_batch(self.clock(), report)
        for callback in self._listeners:
            try:
                callback(report)
            except Exception:
                LOGGER.exception("A listener of the engine failed")

    # Reading.

    def _read(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except sqlite3.Error as error:
                future.set_exception(StoreFailed(f"The store cannot be read: {error}."))
            except Exception as error:
                future.set_exception(error)

        if self._phase == "closed":
            future.set_exception(NotReady("The service has been stopped."))
        elif self._reader is None:
            run()
        else:
            self._reader.submit(run)
        return future

    def _find(self, stream: str) -> StreamDetail:
        with self._changed:
            record = self._log.records.get(stream)
        if record is None:
            text = self._store.read_record(stream)
            record = None if text is None else StreamRecord.read(text)
        if record is None or record.health == DELETED:
            raise UnknownStream(f"There is no stream {stream!r}.")
        notes = [StepNote.read(text) for text in self._store.read_steps(stream)]
        answers = [
            {"seq": note.seq, "label": None if kind is None else self.names[kind], "probability": share}
            for note in notes
            for kind, share in note.answers
        ]
        return StreamDetail(
            status=self._describe(record),
            signals=record.signals,
            history=[note.point for note in notes],
            shares=record.list_shares(self.names),
            snapshots=list(record.snapshots),
            answers=answers[-LAST_ANSWERS:],
            events=[read_event(text) for text in self._store.read_events(stream)],
        )

    def _list(self, after: str, limit: int) -> list[StreamStatus]:
        records = [StreamRecord.read(text) for text in self._store.list_records(after, limit)]
        found = {record.stream: record for record in records}
        with self._changed:
            newer = {stream: record for stream, record in self._log.records.items() if stream > after}
        if not self._at_intervals:  # what is published is stored
            newer = {stream: record for stream, record in newer.items() if stream in found}
        merged = found | newer
        there = [merged[stream] for stream in sorted(merged) if merged[stream].health != DELETED]
        return [self._describe(record) for record in there[:limit]]

    def _describe(self, record: StreamRecord) -> StreamStatus:
        with self._changed:
            waiting = self._scheduler.count(record.stream)
            return record.describe(record.stream in self._worker.residents, waiting)

    def _find_state(self) -> EngineState:
        return "degraded" if self._phase == "ready" and self._failure else self._phase

    def _is_idle(self) -> bool:
        return not (self._scheduler.requests or self._computing or self._commits or self._pending)


def _check_method(method: Method, names: Sequence[str]) -> None:
    if method.grows:
        raise LmrError(
            f"The state of {method.name} grows without bound, so it cannot be served; choose another method."
        )
    if len(names) != method.classifier.classes:
        raise LmrError(f"Expected the names of {method.classifier.classes} classes, got {len(names)}.")


def _say_failed(reason: str) -> StoreFailed:
    return StoreFailed(f"{reason} This request was not applied; its stream is as it was before.")
