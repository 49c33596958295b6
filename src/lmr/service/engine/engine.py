"""Engine: queues requests of streams, answers them in batches, and keeps the states. It knows nothing of HTTP.

The way of a request: ``submit`` queues a job in the scheduler; the compute thread forms a batch, whose jobs the worker
computes; the store thread commits the changes of the batch and then sends its answers, while the next batch is
computed. If a commit fails, everything computed on top of it is undone: its streams are read back from the store, and
requests that adapt are refused until the store can be written again.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.labelled import RECENT, Labelled
from lmr.core.log import LOGGER
from lmr.core.method import Method
from lmr.core.wrapper import Wrapper
from lmr.service.engine.batch import Batch, BatchReport, Job
from lmr.service.engine.camera import is_silent
from lmr.service.engine.changes import ChangeLog
from lmr.service.engine.committer import Committer
from lmr.service.engine.delivery import Delivery, replay
from lmr.service.engine.records import DELETED, StepNote, StreamRecord
from lmr.service.engine.requests import (
    BadInput,
    ComputeFailed,
    DeadlinePassed,
    NotReady,
    QueuedImage,
    Refused,
    StepAnswer,
    StepRequest,
    StoreFailed,
    StreamAction,
    StreamTask,
    UnknownStream,
)
from lmr.service.engine.scheduler import Scheduler
from lmr.service.engine.status import (
    Changes,
    EngineState,
    Overview,
    ServiceEvent,
    StreamDetail,
    StreamStatus,
)
from lmr.service.engine.worker import Worker
from lmr.service.settings import ServiceSettings
from lmr.service.store.addresses import StateStore
from lmr.service.store.sqlite_store import SqliteStore
from lmr.service.store.stored_types import StoreError

LOOK = 1.0  # seconds between two looks at what changes by itself
RECOUNT = 5.0  # seconds after which a store is measured again
SILENCE = 5.0  # seconds after which cameras that send nothing are looked for again
BLOCKED = 0.05  # seconds after which a batch that found no row is formed again
LAST_ANSWERS = 20  # images in the detail of a stream


class Engine:
    """The engine of the service. Every call is thread-safe. Errors of what is queued are set on its future.

    Without a store the states are kept in memory, and end with the process.
    """

    def __init__(
        self,
        method: Method | Wrapper,
        names: Sequence[str],
        settings: ServiceSettings,
        store: StateStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        threads: bool = True,
    ) -> None:
        method = method if isinstance(method, Labelled) else Labelled(method)
        self.method, self.names, self.settings, self.clock = method, list(names), settings, clock
        self._store: StateStore = SqliteStore(None, {}) if store is None else store
        self._changed = threading.Condition()  # guards everything that threads share
        self._summary, self._recount_at, self._silence_at = self._store.summarise(), 0.0, 0.0
        last = max(self._summary.last_change, int(1000 * time.time()))  # above the numbers of any earlier run
        self._log = ChangeLog(last, self._summary.by_health)
        self._scheduler = Scheduler(settings)
        self._delivery = Delivery(self._changed, self._describe)
        self._committer = Committer(self._store, settings, clock, self._changed, self._log, self._delivery)
        self._worker = Worker(method, names, settings, self._store, clock)
        self._computing: list[Job] = []
        self._phase: EngineState = "new"
        self._blocked = False  # True if a batch is due that finds no row
        self._use_threads = threads
        self._compute_thread = threading.Thread(target=self._run_compute, name="lmr-compute", daemon=True)
        self._store_thread = threading.Thread(target=self._committer.run, name="lmr-store", daemon=True)
        self._look_thread = threading.Thread(target=self._run_look, name="lmr-look", daemon=True)

    # Requests.

    def start(self) -> None:
        """Start the compute thread and the store thread."""
        with self._changed:
            if self._phase != "new":
                raise LmrError("The engine was started before; make a new one.")
            self._phase = "ready"
        if self._use_threads:
            self._compute_thread.start()
            self._store_thread.start()
            self._look_thread.start()

    def submit(self, request: StepRequest) -> Future[StepAnswer]:
        """Queue a request; a request with a known key gets its answer at once."""
        future: Future[StepAnswer] = Future()
        try:
            self._check_request(request)
            with self._changed:
                self._check_ready()
                answer = self._delivery.take_key(request)
            if answer is None:
                answer = self._find_answer_or_queue(request, future)
            if answer is not None:
                future.set_result(answer)
        except StoreError as error:
            future.set_exception(StoreFailed(f"The store cannot be read: {error}."))
        except Refused as error:
            future.set_exception(error)
        return future

    def check_room(self, stream: str, key: str | None) -> None:
        """Raise QueueFull or NotReady if any request of this stream would be refused, before it is decoded.

        A request with the key of one that is being served is let through, to be told so.
        """
        with self._changed:
            self._check_ready()
            if key is None or (stream, key) not in self._delivery.keys:
                self._scheduler.check_room(stream, 1)

    def drop(self, future: Future[StepAnswer]) -> bool:
        """Drop the request of a client that disconnected; return False if its batch was formed already."""
        with self._changed:
            job = self._delivery.waiting.get(future)
            if job is None or not self._scheduler.drop(job):
                return False
            self._delivery.forget(job)
        future.cancel()
        return True

    # Operators.

    def act(self, stream: str, action: StreamAction) -> Future[StreamStatus]:
        """Carry out an action of an operator, after the requests of the stream that arrived before.

        The status of a deleted stream has the health "deleted".
        """
        return self._submit_task(stream, StreamTask(action))

    def read_state(self, stream: str) -> Future[bytes]:
        """Return the state of the stream as the file that ``method.save`` writes."""
        return self._submit_task(stream, StreamTask("read"))

    def write_state(self, stream: str, content: bytes) -> Future[StreamStatus]:
        """Replace the state of a stream with that of such a file."""
        return self._submit_task(stream, StreamTask("write", content))

    def add_labels(
        self, stream: str, seq: int, labels: Sequence[str | None], *, teach: bool = True
    ) -> Future[StreamStatus]:
        """Add the true labels of the images of request ``seq``, None where unknown.

        Another label of an image replaces the first. They enter the running accuracy. With ``teach`` the stream learns
        them, too: labels of its last 128 images, and of those that were asked for, correct its answers. Older ones
        enter the class shares of a method that counts them.
        """
        return self._submit_task(stream, StreamTask("label", seq=seq, labels=tuple(labels), teach=teach))

    def ask_labels(self, stream: str, images: Sequence[QueuedImage]) -> Future[list[QueuedImage]]:
        """Remember images of ``list_unlabelled`` until 32 others are asked for; return those that are still there."""
        return self._submit_task(stream, StreamTask("ask", images=tuple(images)))

    # Reading.

    def find(self, stream: str) -> StreamDetail:
        """Return one stream in detail; reads the store, and moves no stream."""
        with self._reading():
            record = self._find_record(stream)
            notes = [StepNote.from_json(text) for text in self._store.read_steps(stream)]
            answers = [
                {"seq": note.seq, "label": label, "probability": share, "frozen": note.frozen.get(k)}
                for note in notes
                for k, (label, share) in enumerate(note.answers)
            ]
            return StreamDetail(
                status=self._describe(record),
                signals=record.signals,
                history=[note.point for note in notes],
                shares=record.list_shares(),
                snapshots=list(record.snapshots),
                answers=answers[-LAST_ANSWERS:],
                events=[ServiceEvent.from_json(text) for text in self._store.read_events(stream)],
            )

    def is_gone(self, stream: str) -> bool:
        """Return True if the store has no such stream. In memory, or if it cannot be read, nobody knows."""
        try:
            with self._reading():
                self._find_record(stream)
        except Refused as error:
            return self._store.durable and isinstance(error, UnknownStream)
        return False

    def list_unlabelled(self, stream: str) -> list[QueuedImage]:
        """Return the images of a stream that can be labelled and are not, oldest first; reads the store."""
        with self._reading():
            record = self._find_record(stream)
            notes = [StepNote.from_json(text) for text in self._store.read_steps(stream)]
            return [
                QueuedImage(note.seq, place, note.count)
                for note in notes
                if note.seq > record.forgot and note.first >= 0
                for k, place in enumerate(note.places)
                if note.first + k >= record.seen - RECENT and not (note.taught and note.taught[k])
            ]

    def list_estimated(self, limit: int) -> list[StreamStatus]:
        """Return streams that changed since the start and whose accuracy is estimated, the last changed first."""
        with self._changed:
            found = (record for record in reversed(self._log.records.values()) if record.estimated_labels)
            return [self._describe(record) for record in itertools.islice(found, limit) if record.health != DELETED]

    def list_streams(self, after: str = "", limit: int = 100) -> list[StreamStatus]:
        """Return the streams with names after ``after``, in the order of their names, once they are in the store."""
        with self._reading():
            stored = [StreamRecord.read(*pair) for pair in self._store.list_records(after, limit)]
            if not self._store.shared:  # other engines change a shared store, too
                with self._changed:
                    recent = [self._log.records.get(record.stream, record) for record in stored]
                stored = [old if new.health == DELETED else new for old, new in zip(stored, recent, strict=True)]
            return [self._describe(record) for record in stored]

    def read_overview(self) -> Overview:
        """Return the engine at a glance, without waiting."""
        with self._changed:
            by_health = {health: count for health, count in self._log.by_health.items() if count}
            return Overview(
                state="degraded" if self._phase == "ready" and self._committer.failure else self._phase,
                reason=self._committer.failure,
                streams=sum(by_health.values()),
                resident=len(self._worker.residents),
                by_health=by_health,
                by_phase={phase: count for phase, count in self._log.by_phase.items() if count},
                by_camera={str(state): count for state, count in self._log.by_camera.items() if count},
                queue_images=self._scheduler.images,
                queue_requests=self._scheduler.requests,
                in_flight=len(self._computing) + self._committer.count_in_flight(),
                store_bytes=self._summary.size,
                durable=self._store.durable,
                shared=self._store.shared,
                last_commit=self._committer.last_commit,
                unsaved=self._committer.count_unsaved(),
                change=self._log.last,
            )

    def recount(self) -> None:
        """Measure the store, and count the streams in it again where other engines change them too."""
        started = time.monotonic()
        self._summary = self._store.summarise()
        # Counting many streams takes time, so that it is done less often then.
        self._recount_at = time.monotonic() + max(RECOUNT, 100 * (time.monotonic() - started))
        if self._store.shared:
            with self._changed:
                self._log.recount(self._summary.by_health, self._summary.last_change)

    def note_silence(self, now: float) -> None:
        """Look for cameras that send nothing for longer than usual, among the streams that changed since the start."""
        with self._changed:
            records = [one for one in self._log.records.values() if one.health != DELETED]
        for record in records:
            if is_silent(record.picture, now) and is_silent(self._find_record(record.stream).picture, now):
                self._submit_task(record.stream, StreamTask("silent"))

    def read_changes(self, after: int, limit: int) -> Changes:
        """Return events and streams that changed after change number ``after``, at most ``limit`` of each."""
        with self._changed:
            upto, events, records, lost = self._log.read(after, limit)
            return Changes(after, upto, events, [self._describe(record) for record in records], lost)

    def listen(self, callback: Callable[[BatchReport], None]) -> None:
        """Call ``callback`` after every batch, from a thread of the engine."""
        self._delivery.listeners.append(callback)

    def listen_results(self, callback: Callable[[StepAnswer | StreamStatus], None]) -> None:
        """Call ``callback`` with every answer that is sent and every stream that an operator changed; it must not wait.

        An answer that is sent again for its key is not repeated here.
        """
        self._delivery.result_listeners.append(callback)

    def close(self) -> None:
        """Refuse queued requests, finish and commit the others, end the threads and close the store."""
        with self._changed:
            if self._phase == "closed":
                return
            started, self._phase = self._phase != "new", "closed"
            left = self._scheduler.clear()
            self._changed.notify_all()
        self._delivery.refuse(left, NotReady("The service has been stopped."))
        if self._use_threads and started:
            self._compute_thread.join()
            self._committer.stop()
            self._store_thread.join()
            self._look_thread.join()
        elif started:
            self.run_once()
        self._store.close()

    def run_once(self) -> bool:
        """Without threads: form, compute and commit one batch; return False if there was nothing to do."""
        with self._changed:
            batch = self._form()
        if batch is not None:
            self._work(batch)
        return self._committer.work() or batch is not None

    # Requests on their way to the worker.

    def _check_request(self, request: StepRequest) -> None:
        try:
            self.method.classifier.check(request.images)
        except LmrError as error:
            raise BadInput(str(error)) from error

    def _find_answer_or_queue(self, request: StepRequest, future: Future[StepAnswer]) -> StepAnswer | None:
        """Return the committed answer to a request whose key was reserved, or queue it."""
        queued = False
        try:
            if request.key is not None and not self._store.shared:  # the worker and the commit ask a shared store
                found = self._store.read_answer(request.stream, request.key)
                if found is not None:
                    return replay(request, found)
            self._add(request.stream, request, future)
            queued = True
            return None
        finally:
            if not queued:
                with self._changed:
                    self._delivery.release(request.stream, request.key)

    def _check_ready(self) -> None:
        if self._phase != "ready":
            raise NotReady("The service has been stopped.")

    def _submit_task(self, stream: str, task: StreamTask) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            self._add(stream, task, future)
        except Refused as error:
            future.set_exception(error)
        return future

    def _add(self, stream: str, task: StepRequest | StreamTask, future: Future[Any]) -> None:
        images, deadline = (len(task.images), task.deadline) if isinstance(task, StepRequest) else (0, None)
        with self._changed:
            self._check_ready()
            now = self.clock()
            end = now + self.settings.timeout_ms / 1000 if deadline is None else deadline
            job = Job(stream, task, images, now, end, future=future)
            self._scheduler.add(job)
            self._delivery.waiting[future] = job
            self._changed.notify_all()

    # The compute thread.

    def _run_compute(self) -> None:
        while True:
            with self._changed:
                batch = self._form()
                while batch is None and (self._phase != "closed" or not self._committer.is_idle):
                    self._changed.wait(self._find_pause())
                    batch = self._form()
            if batch is None:
                return
            self._work(batch)

    def _run_look(self) -> None:
        """Look at the store and for silent cameras until the end; a store that cannot be read is tried again."""
        while self._phase != "closed":
            try:
                if time.monotonic() >= self._recount_at:
                    self.recount()
                if time.monotonic() >= self._silence_at:
                    self.note_silence(time.time())
                    self._silence_at = time.monotonic() + SILENCE
            except Exception as error:  # this thread outlives every failure of the store
                LOGGER.info("The store cannot be read: %s", error)
            with self._changed:
                self._changed.wait_for(lambda: self._phase == "closed", LOOK)

    def _form(self) -> Batch | None:
        now, hurry, committer = self.clock(), self._phase != "ready", self._committer
        self._worker.forget(committer.stale)
        committer.stale.clear()
        late, unsaved = self._scheduler.expire(now), committer.list_unsaved()
        plan = self._worker.residents.plan(unsaved)
        jobs = [] if committer.is_full else self._scheduler.form(now, plan.admit, hurry=hurry)
        next_time = self._scheduler.find_next_time()
        self._blocked = not jobs and next_time is not None and next_time <= now
        running = self._delivery.begin(jobs)
        due = committer.flush_time
        flush = due is not None and (now >= due or hurry or self._blocked) and not committer.is_full
        if not (running or late or flush):
            return None
        self._computing = running
        return Batch(
            running,
            late,
            flush,
            failure=committer.failure,
            pinned=plan.pinned | {job.stream for job in running},
            needed=self._scheduler.streams,
            unsaved=unsaved,
            time=time.time(),
            epoch=committer.epoch,
            take_number=self._log.take_number,
            room=self.settings.max_streams - self._log.count() - committer.count_new(),
        )

    def _find_pause(self) -> float | None:
        """Return the seconds until a batch or a commit is due; None if none is."""
        if self._blocked:
            return BLOCKED
        known = [one for one in (self._scheduler.find_next_time(), self._committer.flush_time) if one is not None]
        return max(0.0, min(known) - self.clock()) if known else None

    def _work(self, batch: Batch) -> None:
        self._delivery.refuse(batch.late, DeadlinePassed("The deadline passed in the queue; nothing was adapted."))
        try:
            if batch.jobs:
                self._worker.serve(batch)
                if batch.store_error is not None and self._store.shared:
                    self._committer.degrade(batch.store_error)
                with self._changed:
                    self._scheduler.note_batch(batch.images, batch.seconds)
                    self._computing = []
                self._committer.take(batch)
            if batch.flush:
                self._committer.flush(self._worker.pack)
        except Exception as error:
            LOGGER.exception("A batch failed")
            self._delivery.fail(batch.jobs, ComputeFailed(f"The engine failed: {error!r}."))
            self._committer.lose({job.stream for job in batch.jobs}, wait=self._use_threads)
        finally:
            with self._changed:
                self._computing = []
                self._changed.notify_all()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        if self._phase == "closed":
            raise NotReady("The service has been stopped.")
        try:
            yield
        except StoreError as error:
            raise StoreFailed(f"The store cannot be read: {error}.") from error

    def _find_record(self, stream: str) -> StreamRecord:
        with self._changed:
            record = None if self._store.shared else self._log.records.get(stream)
        if record is None:
            record = StreamRecord.read(stream, self._store.read_record(stream))
        if record.health == DELETED:
            raise UnknownStream(f"There is no stream {stream!r}.")
        return record

    def _describe(self, record: StreamRecord) -> StreamStatus:
        with self._changed:
            waiting = self._scheduler.count(record.stream)
            return record.describe(record.stream in self._worker.residents, waiting)
