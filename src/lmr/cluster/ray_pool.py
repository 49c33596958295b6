"""The pool of a bench on Ray: actors that live on the nodes of a cluster, in place of processes on one machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lmr.bench.plans.task import Task
from lmr.bench.running.workers import Event, choose_task
from lmr.cluster.actor_pool import ActorPool, PoolWorker
from lmr.cluster.bench_actor import DATA_VARIABLE, BenchActor, CheckpointFiles, Progress, TaskResult
from lmr.core.files import write_atomically


class RayPool(ActorPool[Task, Event, TaskResult]):
    """Runs tasks; samples and checkpoints go to ``folder`` before the event about them."""

    def __init__(
        self,
        ray: Any,
        count: int,
        threads: int,
        folder: Path,
        save_seconds: float,
        versions: Mapping[str, str],
        most: int | None = None,
    ) -> None:
        super().__init__(ray, count, threads, most)
        self.folder, self.save_seconds, self.versions = folder, save_seconds, versions

    def create_actor(self, make: Any) -> Any:
        """Return an actor that runs tasks."""
        data = os.environ.get(DATA_VARIABLE)
        return make(BenchActor)(self.threads, self.save_seconds, self.versions, os.getcwd(), data)

    def choose_job(self, fitting: Sequence[Task], worker: PoolWorker[Task]) -> Task:
        """Return a task of the group that the worker has model and images of, or one of a group that nobody is at."""
        busy = [other.group for other in self.workers.values() if other is not worker and other.job]
        return choose_task(list(fitting), worker.group, busy)

    def start_job(self, actor: Any, job: Task) -> Any:
        """Run a task from its checkpoint, if there is one."""
        return actor.run.remote(job, CheckpointFiles.read(self.folder, job.run))

    def report_progress(self, number: int, job: Task, progress: Progress) -> Iterator[Event]:
        """Keep the checkpoint, pass on the rest."""
        if progress.checkpoint is not None:
            progress.checkpoint.write(self.folder, job.run)
        for message in progress.messages:
            yield Event("message", number, job, message=message)
        if progress.images is not None:
            yield Event("progress", number, job, images=progress.images)

    def finish_job(self, number: int, job: Task, result: TaskResult) -> Iterator[Event]:
        """Keep the last progress and the samples; the bench keeps the row."""
        yield from self.report_progress(number, job, result.progress)
        if result.row is None:
            yield Event("failed", number, job, message=result.message, details=result.details)
            return
        samples = self.folder / "samples"
        samples.mkdir(parents=True, exist_ok=True)
        write_atomically(samples / f"{job.run}.npz", result.samples)
        yield Event("done", number, job, row=result.row)

    def keep_unfinished(self, job: Task, result: TaskResult) -> None:
        """Keep the checkpoint of a task that was stopped."""
        if result.progress.checkpoint is not None:
            result.progress.checkpoint.write(self.folder, job.run)

    def make_event(self, kind: Literal["message", "failed"], number: int, job: Task, message: str) -> Event:
        """Return an event that is only a message."""
        return Event(kind, number, job, message=message)

    def name_work(self, job: Task) -> str:
        """Return the dataset of a task."""
        return job.dataset
