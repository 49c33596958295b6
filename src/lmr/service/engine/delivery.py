"""Delivery: gives answers, refusals and reports to those who wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from lmr.core.log import LOGGER
from lmr.service.engine.key_table import KeyTable
from lmr.service.engine.rates import Rates
from lmr.service.engine.records import StreamRecord
from lmr.service.engine.scheduler import Job
from lmr.service.engine.step_types import BatchReport, StepRequest
from lmr.service.engine.stream_types import StreamStatus
from lmr.service.engine.working.served import Served


class Delivery:
    """Knows the jobs that wait, the keys that are taken and the rates; ``changed`` guards them."""

    def __init__(
        self,
        changed: threading.Condition,
        clock: Callable[[], float],
        describe: Callable[[StreamRecord], StreamStatus],
    ) -> None:
        self.waiting: dict[Future[Any], Job] = {}
        self.keys, self.rates = KeyTable(), Rates()
        self._changed, self._clock, self._describe = changed, clock, describe
        self._listeners: list[Callable[[BatchReport], None]] = []

    def listen(self, callback: Callable[[BatchReport], None]) -> None:
        """Call ``callback`` with every report."""
        self._listeners.append(callback)

    def forget(self, job: Job) -> None:
        """A job does not wait any longer, and its key is free."""
        with self._changed:
            self.waiting.pop(job.future, None)
            if isinstance(job.task, StepRequest):
                self.keys.release(job.stream, job.task.key)

    def release(self, request: StepRequest) -> None:
        """The key of a request is free."""
        with self._changed:
            self.keys.release(request.stream, request.key)

    def begin(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of the jobs of a new batch that were not cancelled; from now on they cannot be."""
        running = []
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                self.waiting.pop(job.future, None)
                running.append(job)
            else:
                self.forget(job)
        return running

    def refuse(self, jobs: Sequence[Job], error: Exception) -> None:
        """Refuse jobs that waited."""
        self.fail([job for job in jobs if job.future.set_running_or_notify_cancel()], error)
        for job in jobs:
            self.forget(job)

    def fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """Jobs that were begun have failed."""
        for job in jobs:
            self.forget(job)
            if not job.future.done():
                job.future.set_exception(error)

    def give(self, results: Sequence[tuple[Job, Any]], *, keep_keys: bool = False) -> None:
        """Answer; the keys stay taken where the answers are not committed yet."""
        now = self._clock()
        for job, value in results:
            with self._changed:
                if isinstance(job.task, StepRequest):
                    self.rates.add_latency(now - job.arrived)
                if not keep_keys:
                    self.forget(job)
            job.future.set_result(self._describe(value) if isinstance(value, StreamRecord) else value)

    def report(self, served: Served, commit_seconds: float | None) -> None:
        """Tell of a batch."""
        report = BatchReport(served.images, len(served.jobs), served.steps, served.seconds, commit_seconds)
        with self._changed:
            self.rates.add_batch(self._clock(), report)
        for callback in self._listeners:
            try:
                callback(report)
            except Exception:
                LOGGER.exception("A listener of the engine failed")
