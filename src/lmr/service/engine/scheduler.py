"""The scheduler: a queue by stream, and which requests make the next batch. It has no thread and no clock of its own.

A batch takes at most one job of each stream, the one that arrived first, and begins with the job that has waited
longest; so the jobs of a stream stay in order and nobody starves.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from lmr.service.engine.step_types import QueueFull
from lmr.service.settings import ServiceSettings

FIRST = 8  # images in a batch while it is not known how long an image takes
SHORTEST, LONGEST = 0.05, 60.0  # seconds that a refused client is told to wait
RECENT = 1.0  # seconds for which a stream that sent a request is expected to send another
MEMORY = 0.8  # weight of the past in the time per image, after each batch


@dataclass(eq=False)
class Job:
    """Something to do for one stream, in its turn. ``images`` is 0 for what is asked of a state alone."""

    stream: str
    task: Any
    images: int
    arrived: float
    deadline: float | None = None
    overloaded: bool = False  # taken although the queue was full, to be answered without adapting
    future: Future[Any] = field(default_factory=Future)
    number: int = 0  # in the order of arrival
    started: float = 0.0  # when its batch was formed

    @property
    def weight(self) -> int:
        """What it counts in the queue."""
        return max(1, self.images)


class Scheduler:
    """The queue. ``images`` and ``requests`` count what waits."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.images = self.requests = 0
        self.seconds_per_image: float | None = None
        self._queues: dict[str, deque[Job]] = {}
        self._expected: dict[str, float] = {}  # streams by the time of their last job, oldest first
        self._numbers = itertools.count()

    @property
    def streams(self) -> set[str]:
        """The streams with waiting jobs."""
        return set(self._queues)

    def count(self, stream: str) -> int:
        """The waiting jobs of a stream."""
        return len(self._queues.get(stream, ()))

    @property
    def limit(self) -> int:
        """The images of a full batch."""
        if self.seconds_per_image is None:
            return min(self.settings.max_batch, FIRST)
        images = self.settings.max_step_ms / 1000 / max(self.seconds_per_image, 1e-9)
        return max(1, int(min(self.settings.max_batch, images)))

    def add(self, job: Job) -> None:
        """Let a job wait; QueueFull if there is no room, or ``job.overloaded`` where that is how overload is met."""
        job.overloaded = self.check_room(job.stream, job.images)
        job.number = next(self._numbers)
        self._queues.setdefault(job.stream, deque()).append(job)
        self._expected.pop(job.stream, None)
        self._expected[job.stream] = job.arrived
        self._count(job, 1)

    def check_room(self, stream: str, images: int) -> bool:
        """QueueFull if a job would find no room; True if it would be taken only because overload is met by answers."""
        weight = max(1, images)
        where, overloaded = self._find_full(stream, weight, 1), False
        if where and self.settings.overload == "answer" and images:
            where, overloaded = self._find_full(stream, weight, 2), True
        if where:
            seconds = self._estimate_wait(where == "stream")
            what = f"Stream {stream!r} has" if where == "stream" else "The service has"
            raise QueueFull(f"{what} as many requests waiting as it may; try again in {seconds:.1f} seconds.", seconds)
        return overloaded

    def drop(self, job: Job) -> bool:
        """Let a job wait no longer; False if it did not wait."""
        queue = self._queues.get(job.stream, deque())
        if job not in queue:
            return False
        queue.remove(job)
        self._count(job, -1)
        if not queue:
            del self._queues[job.stream]
        return True

    def expire(self, now: float) -> list[Job]:
        """Drop the jobs whose deadline has passed."""
        late = [job for job in self if job.deadline is not None and job.deadline <= now]
        for job in late:
            self.drop(job)
        return late

    def clear(self) -> list[Job]:
        """Drop all."""
        left = list(self)
        for job in left:
            self.drop(job)
        return left

    def __iter__(self) -> Iterator[Job]:
        return itertools.chain.from_iterable([list(queue) for queue in self._queues.values()])

    def form(self, now: float, fits: Callable[[str], bool] = lambda stream: True, *, hurry: bool = False) -> list[Job]:
        """The next batch, for a processor that is idle; empty if it is better to wait for more, or nothing waits.

        It is due when it is full, when every stream that was active in the last second is waiting, or when its first
        job has waited long enough. ``fits`` says, in turn, of each stream whether it may be in the batch. ``hurry``:
        wait for nothing.
        """
        heads = sorted((queue[0] for queue in self._queues.values()), key=lambda job: job.number)
        if not heads:
            return []
        complete = self._are_all_here(now) or sum(job.images for job in heads) >= self.limit
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
        """When to look again although nothing arrives: a batch is due, or a deadline passes. None if nothing waits."""
        times = [job.deadline for job in self if job.deadline is not None]
        times += [queue[0].arrived + self.settings.max_wait_ms / 1000 for queue in self._queues.values()]
        return min(times, default=None)

    def note_batch(self, images: int, seconds: float) -> None:
        """Learn how long an image takes."""
        if images:
            now, before = seconds / images, self.seconds_per_image
            self.seconds_per_image = now if before is None else MEMORY * before + (1 - MEMORY) * now

    def _are_all_here(self, now: float) -> bool:
        """Whether no other stream is expected to send something soon."""
        while self._expected and next(iter(self._expected.values())) < now - RECENT:
            del self._expected[next(iter(self._expected))]
        return all(stream in self._queues for stream in self._expected)

    def _find_full(self, stream: str, weight: int, times: int) -> str:
        """What is full, if the bounds were so many times what they are: the "service", the "stream", or nothing."""
        if self.images + weight > times * self.settings.queue_images:
            return "service"
        return "stream" if self.count(stream) >= times * self.settings.queue_per_stream else ""

    def _estimate_wait(self, one_batch: bool) -> float:
        """Seconds until there is room: a stream has room after the next batch, the queue when it has been served."""
        images = min(self.images, self.limit) if one_batch else self.images
        return min(max(images * (self.seconds_per_image or 0.0), SHORTEST), LONGEST)

    def _count(self, job: Job, sign: int) -> None:
        self.images += sign * job.weight
        self.requests += sign
