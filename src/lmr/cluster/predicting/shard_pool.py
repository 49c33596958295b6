"""The pool that labels shards on Ray: what its workers have finished goes to the parts of the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmr.apps.predict.results import RunTally
from lmr.apps.predict.streams import ImageStream, StreamParts, StreamPlan
from lmr.cluster.actor_pool import ActorPool, PoolWorker
from lmr.cluster.predicting.predict_actor import (
    LabelSetup,
    PredictActor,
    ShardNews,
    ShardResult,
    StreamTicket,
    measure_files,
)
from lmr.core.errors import LmrError


@dataclass(frozen=True)
class Shard:
    """Streams that are labelled one after the other."""

    number: int
    streams: tuple[ImageStream, ...]

    @property
    def images(self) -> int:
        """The number of images and videos in its streams."""
        return sum(len(stream.images) for stream in self.streams)


def make_shards(streams: Iterable[ImageStream], count: int) -> list[Shard]:
    """Share streams out over at most ``count`` shards of about as many images each; always in the same way.

    The longest stream comes first and goes to the shard that has the fewest images so far.
    """
    ordered = sorted(streams, key=lambda stream: (-len(stream.images), stream.number))
    taken: list[list[ImageStream]] = [[] for _ in range(min(count, len(ordered)))]
    loads = [0] * len(taken)
    for stream in ordered:
        place = loads.index(min(loads))
        taken[place].append(stream)
        loads[place] += len(stream.images)
    by_number = [tuple(sorted(own, key=lambda stream: stream.number)) for own in taken]
    return [Shard(number, own) for number, own in enumerate(by_number)]


@dataclass(frozen=True)
class ShardJob:
    """A shard as the job of a worker."""

    shard: Shard

    @property
    def run(self) -> str:
        """Return the name of the shard."""
        return f"shard {self.shard.number + 1}"

    @property
    def group(self) -> tuple[str, ...]:
        """Shards have other files than each other."""
        return (self.run,)


@dataclass(frozen=True)
class ShardEvent:
    """A report of a worker about its shard."""

    kind: Literal["progress", "stream", "message", "done", "failed"]
    worker: int
    job: ShardJob
    message: str = ""  # with "progress" and "stream": the name of the stream
    images: int = 0  # of this stream, so far


class ShardPool(ActorPool[ShardJob, ShardEvent, ShardResult]):
    """Labels shards; finished answers are among ``parts`` before the event about them."""

    def __init__(
        self,
        ray: Any,
        count: int,
        threads: int,
        versions: Mapping[str, str],
        setup: LabelSetup,
        plan: StreamPlan,
        parts: StreamParts,
        tally: RunTally,
        most: int | None = None,
    ) -> None:
        super().__init__(ray, count, threads, most)
        self.versions, self.setup, self.plan, self.parts, self.tally = versions, setup, plan, parts, tally

    def create_actor(self, make: Any) -> Any:
        """Return an actor that labels shards."""
        return make(PredictActor)(self.threads, self.versions, self.setup)

    def choose_job(self, fitting: Sequence[ShardJob], worker: PoolWorker[ShardJob]) -> ShardJob:
        """Return the next shard."""
        return fitting[0]

    def start_job(self, actor: Any, job: ShardJob) -> Any:
        """Label the streams of a shard that are not finished, from where they are."""
        tickets = []
        for stream in job.shard.streams:
            if self.parts.is_finished(stream.number):
                continue
            kept, state = self.parts.read(stream.number), self.plan.find_state(stream)
            earlier = state.read_bytes() if kept is None and state is not None and state.exists() else None
            sizes = measure_files(stream.images)
            tickets.append(StreamTicket(stream, self.plan.title(stream), sizes, kept, earlier))
        return actor.run.remote(tickets)

    def report_progress(self, number: int, job: ShardJob, progress: ShardNews) -> Iterator[ShardEvent]:
        """Keep the answers."""
        if not self._keep(progress):
            raise LmrError(f"Answers of {job.run} were lost on the way from its node.")
        names = {stream.number: stream.name for stream in job.shard.streams}
        for part in progress.parts:
            if part.finished:
                yield ShardEvent("stream", number, job, names[part.number])
        if progress.stream:
            yield ShardEvent("progress", number, job, progress.stream, progress.images)

    def finish_job(self, number: int, job: ShardJob, result: ShardResult) -> Iterator[ShardEvent]:
        """Keep the last answers."""
        yield from self.report_progress(number, job, result.progress)
        yield ShardEvent("failed" if result.message else "done", number, job, result.message)

    def keep_unfinished(self, job: ShardJob, result: ShardResult) -> None:
        """Keep what a shard has finished that was stopped; if progress before it were lost, it does not count."""
        self._keep(result.progress)

    def _keep(self, progress: ShardNews) -> bool:
        for part in progress.parts:
            if self.parts.is_finished(part.number):  # told twice, when an interrupt came in between
                continue
            if not self.parts.extend(part.number, part.offset, part.content, part.state):
                return False
            self.tally.add(part.tally)
            if part.finished:
                self.parts.finish(part.number, self.plan.state is not None)
        return True

    def make_event(self, kind: Literal["message", "failed"], number: int, job: ShardJob, message: str) -> ShardEvent:
        """Return an event that is only a message."""
        return ShardEvent(kind, number, job, message)

    def name_work(self, job: ShardJob) -> str:
        """Return the shard."""
        return job.run
