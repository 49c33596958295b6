"""Scheduler: the queues of the streams, and the jobs of the next batch. It has no thread and no clock of its own.

A batch takes at most one job of each stream, the one that arrived first, and starts with the job that has waited
longest. So the jobs of a stream stay in order and no stream starves.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator

from lmr.service.engine.batch import Job
from lmr.service.engine.requests import QueueFull
from lmr.service.settings import ServiceSettings

FIRST = 8  # images in a batch before the time per image is known
SHORTEST, LONGEST = 0.05, 60.0  # bounds of the waiting time that a refused client is told, in seconds
RECENT = 1.0  # seconds for which a stream that sent a request is expected to send another
MEMORY = 0.8  # weight of the past in the time per image, after each batch


class Scheduler:
    """The queue. ``images`` and ``requests`` count what is queued."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.images = self.requests = 0
        self.seconds_per_image: float | None = None
        self._queues: dict[str, deque[Job]] = {}
        self._expected: dict[str, float] = {}  # streams by the time of their last job, oldest first
        self._numbers = itertools.count()

    @property
    def streams(self) -> set[str]:
        """Return the streams with queued jobs."""
        return set(self._queues)

    def count(self, stream: str) -> int:
        """Return the number of queued jobs of a stream."""
        return len(self._queues.get(stream, ()))

    @property
    def limit(self) -> int:
        """Return the number of images of a full batch."""
        if self.seconds_per_image is None:
            return min(self.settings.max_batch, FIRST)
        images = self.settings.max_step_ms / 1000 / max(self.seconds_per_image, 1e-9)
        return max(1, int(min(self.settings.max_batch, images)))

    def add(self, job: Job) -> None:
        """Queue a job, or raise QueueFull."""
        self.check_room(job.stream, job.images)
        job.number = next(self._numbers)
        self._queues.setdefault(job.stream, deque()).append(job)
        self._expected.pop(job.stream, None)
        self._expected[job.stream] = job.arrived
        self._count(job, 1)

    def check_room(self, stream: str, images: int) -> None:
        """Raise QueueFull if a job has no room."""
        if self.images + max(1, images) > self.settings.queue_images:
            queue, seconds = "queue of the service", self._estimate_wait(self.images)
        elif self.count(stream) >= self.settings.queue_per_stream:
            queue, seconds = f"queue of stream {stream!r}", self._estimate_wait(min(self.images, self.limit))
        else:
            return
        raise QueueFull(f"The {queue} is full; try again in {seconds:.1f} seconds.", seconds)

    def drop(self, job: Job) -> bool:
        """Remove a job from the queue; return False if it was not there."""
        queue = self._queues.get(job.stream, deque())
        if job not in queue:
            return False
        queue.remove(job)
        self._count(job, -1)
        if not queue:
            del self._queues[job.stream]
        return True

    def expire(self, now: float) -> list[Job]:
        """Remove and return the jobs whose deadline has passed."""
        late = [job for job in self if job.deadline <= now]
        for job in late:
            self.drop(job)
        return late

    def clear(self) -> list[Job]:
        """Remove and return all jobs."""
        left = list(self)
        for job in left:
            self.drop(job)
        return left

    def __iter__(self) -> Iterator[Job]:
        return itertools.chain.from_iterable([list(queue) for queue in self._queues.values()])

    def form(self, now: float, fits: Callable[[str], bool] = lambda stream: True, *, hurry: bool = False) -> list[Job]:
        """Remove and return the jobs of the next batch; empty if nothing is queued or it is better to wait for more.

        A batch is due when it is full, when every stream that was active in the last second is queued, or when its
        first job has waited ``max_wait_ms``. ``fits`` is called for one stream after the other and says whether the
        batch has a row for it. ``hurry`` waits for nothing.
        """
        heads = sorted((queue[0] for queue in self._queues.values()), key=lambda job: job.number)
        if not heads:
            return []
        complete = self._are_all_queued(now) or sum(job.images for job in heads) >= self.limit
        if not complete and not hurry and now < heads[0].arrived + self.settings.max_wait_ms / 1000:
            return []
        batch: list[Job] = []
        images = 0
        for job in heads:
            small = not batch or images + job.images <= self.limit
            if small and fits(job.stream):
                batch.append(job)
                images += job.images
        for job in batch:
            self.drop(job)
            job.started = now
        return batch

    def find_next_time(self) -> float | None:
        """Return the time at which a batch is due or a deadline passes; None if nothing is queued."""
        times = [job.deadline for job in self]
        times += [queue[0].arrived + self.settings.max_wait_ms / 1000 for queue in self._queues.values()]
        return min(times, default=None)

    def note_batch(self, images: int, seconds: float) -> None:
        """Update the time per image."""
        if images:
            now, before = seconds / images, self.seconds_per_image
            self.seconds_per_image = now if before is None else MEMORY * before + (1 - MEMORY) * now

    def _are_all_queued(self, now: float) -> bool:
        while self._expected and next(iter(self._expected.values())) < now - RECENT:
            del self._expected[next(iter(self._expected))]
        return all(stream in self._queues for stream in self._expected)

    def _estimate_wait(self, images: int) -> float:
        """Return the seconds until so many images are computed, and there is room."""
        return min(max(images * (self.seconds_per_image or 0.0), SHORTEST), LONGEST)

    def _count(self, job: Job, sign: int) -> None:
        self.images += sign * job.weight
        self.requests += sign
