"""SimulatedReplica: one replica of the service on a simulated clock.

Scheduler and residents are those of the service. Times come from formulas: a step takes a fixed time and a time for
each image, a commit a fixed time and a time for its bytes, the reading of a state a time for its bytes. As in the
engine, the commit of a batch overlaps the next steps, at most two commits are unfinished, and a stream whose state is
not committed keeps its row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lmr.service.engine.batch import Job
from lmr.service.engine.committer import MOST_COMMITS
from lmr.service.engine.records import StreamRecord
from lmr.service.engine.requests import QueueFull
from lmr.service.engine.residents import Resident, Residents, RowPlan
from lmr.service.engine.scheduler import Scheduler
from lmr.service.settings import ServiceSettings


@dataclass(frozen=True)
class ReplicaTimes:
    """The seconds that the actions of a replica take."""

    step: Callable[[int], float]  # of a number of images
    commit: Callable[[int], float]  # of a number of states
    read: float = 0.0  # of one state


@dataclass
class ReplicaLog:
    """The requests of a replica, and how it spent its time."""

    sent: int = 0
    refused: int = 0
    expired: int = 0
    latencies: list[float] = field(default_factory=list)  # of answered requests, from arrival to answer
    waits: list[float] = field(default_factory=list)  # from arrival to the forming of the batch
    waited: dict[str, float] = field(default_factory=dict)  # the longest wait of each stream
    batches: list[int] = field(default_factory=list)  # images of each
    busy: float = 0.0  # seconds that steps took
    commits: int = 0
    states_written: int = 0
    loads: int = 0
    evictions: int = 0
    resident: int = 0
    ended: float = 0.0  # the time at which everything was served

    @property
    def answered(self) -> int:
        """Return the number of answered requests."""
        return len(self.latencies)


class SimulatedReplica:
    """A replica that serves requests which arrive at given times."""

    def __init__(self, settings: ServiceSettings, times: ReplicaTimes, streams: Sequence[str]) -> None:
        self.settings, self.times, self.log = settings, times, ReplicaLog()
        self.scheduler = Scheduler(settings)
        self.residents = Residents(settings.resident)
        self.now = 0.0
        self._at_intervals = settings.durability == "interval"
        self._commits: deque[tuple[float, set[str]]] = deque()  # the end of each, and its streams
        self._pending: set[str] = set()  # answered, to be committed with the next interval
        self._pending_since = 0.0
        for stream in streams[: settings.resident]:  # the state after a long time, not after a start
            self._give_row(stream)

    def run(
        self,
        arrivals: Sequence[tuple[float, str]],
        images: int = 1,
        on_batch: Callable[[float, Sequence[Job]], None] = lambda now, batch: None,
    ) -> ReplicaLog:
        """Serve requests of ``images`` images, given by time and stream in the order of time, until all are served.

        ``on_batch`` is called with every batch when it is formed.
        """
        position = 0
        self.log.sent = len(arrivals)
        while position < len(arrivals) or self.scheduler.requests:
            while position < len(arrivals) and arrivals[position][0] <= self.now:
                self._add(*arrivals[position], images)
                position += 1
            while self._commits and self._commits[0][0] <= self.now:
                self._commits.popleft()
            self.log.expired += len(self.scheduler.expire(self.now))
            batch, plan = self._form()
            if batch:
                on_batch(self.now, batch)
                self._serve(batch, plan)
            else:
                self.now = self._find_next(arrivals[position][0] if position < len(arrivals) else None)
        self.log.ended, self.log.resident = self.now, len(self.residents)
        if self._pending:
            self._commit(self._pending)
        return self.log

    def _add(self, time: float, stream: str, images: int) -> None:
        try:
            self.scheduler.add(Job(stream, None, images, time, time + self.settings.timeout_ms / 1000))
        except QueueFull:
            self.log.refused += 1

    def _form(self) -> tuple[list[Job], RowPlan]:
        """Return the next batch and the plan of its rows, after a commit that is due."""
        if self._pending and self.now >= self._pending_since + self.settings.interval_s:
            self._flush()
        unsaved = self._pending.union(*(streams for _, streams in self._commits))
        plan = self.residents.plan(unsaved)
        if len(self._commits) >= MOST_COMMITS:
            return [], plan
        batch = self.scheduler.form(self.now, plan.admit)
        if not batch and self._pending and self.scheduler.requests:
            due = self.scheduler.find_next_time()
            if due is not None and due <= self.now:  # uncommitted streams keep every row
                self._flush()
        return batch, plan

    def _serve(self, batch: Sequence[Job], plan: RowPlan) -> None:
        """Load the states, take the step, and send the answers after their commit."""
        images, streams = sum(job.images for job in batch), {job.stream for job in batch}
        seconds = self._bring(streams, plan) * self.times.read + self.times.step(images)
        self.now += seconds
        self.scheduler.note_batch(images, seconds)
        self.log.busy += seconds
        self.log.batches.append(images)
        answered = self.now
        if self._at_intervals:
            self._pending_since = self._pending_since if self._pending else self.now
            self._pending |= streams
        else:
            answered = self._commit(streams)
        for job in batch:
            wait = job.started - job.arrived
            self.log.latencies.append(answered - job.arrived)
            self.log.waits.append(wait)
            if wait > self.log.waited.get(job.stream, 0.0):
                self.log.waited[job.stream] = wait

    def _bring(self, streams: set[str], plan: RowPlan) -> int:
        """Give every stream a row; return the number of streams that had to be read."""
        missing = [stream for stream in sorted(streams) if self.residents.use(stream) is None]
        stay = plan.stay | streams
        for stream in missing:
            if len(self.residents) >= self.residents.rows:
                leaver = self.residents.choose_leaver(stay, self.scheduler.streams)
                assert leaver is not None, "the plan has promised a row"
                self.residents.forget(leaver)
                self.log.evictions += 1
            self._give_row(stream)
        self.log.loads += len(missing)
        return len(missing)

    def _give_row(self, stream: str) -> None:
        row = self.residents.take_row()
        assert row is not None
        self.residents.add(stream, Resident(row, StreamRecord(stream), exists=True))

    def _flush(self) -> None:
        if len(self._commits) < MOST_COMMITS:
            self._commit(self._pending)
            self._pending = set()

    def _commit(self, streams: set[str]) -> float:
        """Commit after the earlier commits; return the time at which it is finished."""
        begun = max(self.now, self._commits[-1][0]) if self._commits else self.now
        finished = begun + self.times.commit(len(streams))
        self._commits.append((finished, streams))
        self.log.commits += 1
        self.log.states_written += len(streams)
        return finished

    def _find_next(self, arrival: float | None) -> float:
        """Return the next time at which something can change; now, if the last requests are past their deadline."""
        known = [arrival, self.scheduler.find_next_time(), self._commits[0][0] if self._commits else None]
        known += [self._pending_since + self.settings.interval_s] if self._pending else []
        later = [time for time in known if time is not None and time > self.now]
        assert later or not self.scheduler.requests, "requests wait, and nothing is under way"
        return min(later, default=self.now)
