"""Delivery: sets answers and errors on the futures of requests, and knows the keys in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from lmr.core.log import LOGGER
from lmr.service.engine.batch import BatchReport, Job
from lmr.service.engine.records import StreamRecord
from lmr.service.engine.requests import KeyInFlight, KeyReused, StepAnswer, StepRequest, StreamDamaged
from lmr.service.engine.status import StreamStatus
from lmr.service.store.stored_types import KeptAnswer

T = TypeVar("T")


def replay(request: StepRequest, kept: KeptAnswer) -> StepAnswer:
    """Return the stored answer to a request; KeyReused if it belongs to another body, StreamDamaged if it is damaged.

    It is as it was given, whatever the classes are now.
    """
    _check_digest(request, kept.digest)
    try:
        return replace(StepAnswer.from_json(kept.content), replayed=True)
    except ValueError as error:
        raise StreamDamaged(
            f"The answer that is stored under the key {request.key!r} of stream {request.stream!r} is damaged. The "
            "request was applied; use another key to apply it again."
        ) from error


def _check_digest(request: StepRequest, digest: str) -> None:
    if request.digest != digest:
        raise KeyReused(f"The key {request.key!r} belongs to a request with another body; use a new key.")


class Delivery:
    """The queued jobs by their futures, and the idempotency keys in use; the lock ``changed`` guards them.

    A key is in use while its request is served, and until its answer is committed. The store knows the others.
    """

    def __init__(self, changed: threading.Condition, describe: Callable[[StreamRecord], StreamStatus]) -> None:
        self.waiting: dict[Future[Any], Job] = {}
        self.keys: dict[tuple[str, str], tuple[str, StepAnswer | None]] = {}  # stream and key -> digest and answer
        self.listeners: list[Callable[[BatchReport], None]] = []
        self.result_listeners: list[Callable[[StepAnswer | StreamStatus], None]] = []
        self._changed, self._describe = changed, describe

    def take_key(self, request: StepRequest) -> StepAnswer | None:
        """Reserve the key of a request, or return its answer that is not committed yet; KeyInFlight or KeyReused."""
        if request.key is None:
            return None
        place = request.stream, request.key
        if place not in self.keys:
            self.keys[place] = request.digest, None
            return None
        digest, answer = self.keys[place]
        _check_digest(request, digest)
        if answer is None:
            raise KeyInFlight(f"A request with the key {request.key!r} is being served; wait for its answer.")
        return replace(answer, replayed=True)

    def note_answer(self, request: StepRequest, answer: StepAnswer) -> None:
        """Remember an answer that is sent before it is committed."""
        if request.key is not None:
            self.keys[request.stream, request.key] = request.digest, answer

    def release(self, stream: str, key: str | None) -> None:
        """Forget a key: its answer is in the store, or there is none."""
        if key is not None:
            self.keys.pop((stream, key), None)

    def forget(self, job: Job) -> None:
        """Forget a job that has left the queue, and release its key."""
        with self._changed:
            self.waiting.pop(job.future, None)
            if isinstance(job.task, StepRequest):
                self.release(job.stream, job.task.key)

    def begin(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs of a new batch that were not cancelled; from now on they cannot be."""
        running = []
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                self.waiting.pop(job.future, None)
                running.append(job)
            else:
                self.forget(job)
        return running

    def refuse(self, jobs: Sequence[Job], error: Exception) -> None:
        """Fail jobs that were queued and not begun."""
        running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        self.fail(running, error)
        for job in jobs:
            self.forget(job)

    def fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """Fail jobs that were begun, unless they have a result."""
        for job in jobs:
            self.forget(job)
            if not job.future.done():
                job.future.set_exception(error)

    def send(self, jobs: Sequence[Job], *, keep_keys: bool = False) -> None:
        """Send the results and errors of jobs; ``keep_keys`` where the answers are not committed yet."""
        for job in jobs:
            if job.error is not None:
                self.fail([job], job.error)
                continue
            if not keep_keys:
                self.forget(job)
            result = self._describe(job.result) if isinstance(job.result, StreamRecord) else job.result
            job.future.set_result(result)
            if isinstance(result, StepAnswer | StreamStatus):
                self.tell(result)

    def tell(self, result: StepAnswer | StreamStatus) -> None:
        """Notify the listeners of results."""
        _notify(self.result_listeners, result)

    def report(self, report: BatchReport) -> None:
        """Notify the listeners of a finished batch."""
        _notify(self.listeners, report)


def _notify(listeners: Iterable[Callable[[T], None]], news: T) -> None:
    for callback in listeners:
        try:
            callback(news)
        except Exception:
            LOGGER.exception("A listener of the engine failed")
