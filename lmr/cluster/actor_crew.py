"""A crew on Ray: actors that live on the nodes of a cluster and do jobs one after the other.

A member that dies, or whose node does, costs time only: its job is given to another one, from what it has finished.
Nodes that join while the crew is at work get members too. What a job is, and what becomes of its results, is up to the
crews made of this one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from lmr.core.errors import LmrError

POLL_SECONDS = 0.5
HIRE_SECONDS = 5.0  # between looks for free cores
START_SECONDS = 180.0  # without any member that works
STOP_SECONDS = 20.0
TRIES = 3  # of a job whose member died


class CrewJob(Protocol):
    """Something that one member does."""

    @property
    def run(self) -> str:
        """A name that no other job has."""
        ...

    @property
    def group(self) -> tuple[str, ...]:
        """What it shares with other jobs: a node that cannot do one of them cannot do the others."""
        ...


class JobResult(Protocol):
    """How a job ended on a member, as far as every crew looks at it."""

    @property
    def unfit(self) -> bool:
        """Whether the node, not the job, is the reason that it was not done: another node may do it."""
        ...

    @property
    def words(self) -> str:
        """Why it was not done."""
        ...


J = TypeVar("J", bound=CrewJob)
E = TypeVar("E")
R = TypeVar("R", bound=JobResult)


@dataclass
class CrewMember(Generic[J]):
    """An actor, where it is and what it does."""

    actor: Any
    node: str  # Ray's id of its node
    name: str
    job: J | None = None
    result: Any = None  # future of the job's result
    news: Any = None  # future of what it says meanwhile
    group: tuple[str, ...] = ()


class ActorCrew(ABC, Generic[J, E, R]):
    """Up to ``count`` members with ``threads`` threads each; a context manager that ends them."""

    def __init__(self, ray: Any, count: int, threads: int) -> None:
        self.ray, self.count, self.threads = ray, count, threads
        self.members: dict[int, CrewMember[J]] = {}
        self.starting: dict[int, tuple[Any, Any]] = {}  # actors, and futures of where they are
        self.unfit: dict[tuple[str, tuple[str, ...]], str] = {}  # node and group of jobs -> why not there
        self.deaths: Counter[str] = Counter()  # of members, by the job they were at
        self.placed: Counter[str] = Counter()  # members that were started, by the node they were meant for
        self.asked = float("-inf")  # when free cores were last looked for

    # What a crew does with its jobs.

    @abstractmethod
    def create_actor(self, make: Any) -> Any:
        """Create an actor; ``make(Class)`` gives what is called with the arguments of the class."""

    @abstractmethod
    def choose_job(self, fitting: Sequence[J], member: CrewMember[J]) -> J:
        """The job that a member does next."""

    @abstractmethod
    def start_job(self, actor: Any, job: J) -> Any:
        """Let an actor do a job; gives the future of its result."""

    @abstractmethod
    def tell_news(self, number: int, job: J, news: Any) -> Iterator[E]:
        """Keep what a member has sent while it is at work."""

    @abstractmethod
    def finish_job(self, number: int, job: J, result: R) -> Iterator[E]:
        """Keep the result of a job, or say why there is none."""

    @abstractmethod
    def keep_unfinished(self, job: J, result: R) -> None:
        """Keep what a member that was stopped has finished."""

    @abstractmethod
    def make_event(self, kind: Literal["word", "failed"], number: int, job: J, words: str) -> E:
        """An event that is only words."""

    @abstractmethod
    def name_work(self, job: J) -> str:
        """What a node is not used for if it does not fit."""

    # The crew.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def describe(self, worker: int) -> str:
        """The node of a member."""
        member = self.members.get(worker)
        return member.name if member else ""

    def run(self, tasks: Sequence[J]) -> Iterator[E]:
        """Assign the jobs and yield events until all are done or have failed."""
        left, idle_since = list(tasks), time.monotonic()
        while left or any(member.job for member in self.members.values()):
            self._dismiss_useless(left)
            self._hire(left)
            for member in self.members.values():
                if member.job is None and left:
                    self._give(member, left)
            yield from self._fail_homeless(left)
            busy = {member.result: number for number, member in self.members.items() if member.job}
            if busy:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > START_SECONDS:
                raise LmrError("No node of the Ray cluster has a free core; 'ray status' shows what uses them.")
            waited = [*busy, *(where for _, where in self.starting.values())]
            if waited:
                self.ray.wait(waited, num_returns=1, timeout=POLL_SECONDS)
            elif left:
                time.sleep(POLL_SECONDS)
            for number in list(self.members):
                yield from self._hear(number, left)

    def stop(self) -> None:
        """Ask the members to end with what they have finished, keep that, and end all of them."""
        working = [member for member in self.members.values() if member.job]
        for member in working:
            member.actor.stop.remote()
        end = time.monotonic() + STOP_SECONDS
        for member in working:
            if member.job is None:
                continue
            try:
                result: R = self.ray.get(member.result, timeout=max(0.1, end - time.monotonic()))
                if member.news is not None:
                    list(self.tell_news(-1, member.job, self.ray.get(member.news, timeout=STOP_SECONDS)))
            except self.ray.exceptions.RayError:
                continue
            self.keep_unfinished(member.job, result)
        actors = [member.actor for member in self.members.values()] + [actor for actor, _ in self.starting.values()]
        closing = [actor.close.remote() for actor in actors]
        if closing:
            self.ray.wait(closing, num_returns=len(closing), timeout=2.0)
        for actor in actors:
            self.ray.kill(actor)
        self.members, self.starting = {}, {}

    # Members.

    def _dismiss_useless(self, left: list[J]) -> None:
        """End members on nodes that cannot do any of the jobs that are left: their cores count for others."""
        for number, member in list(self.members.items()):
            if member.job is None and left and not self._fits(member.node, left):
                self.ray.kill(member.actor)
                del self.members[number]
                self.asked = float("-inf")

    def _fits(self, node: str, left: list[J]) -> bool:
        """Whether a node can do any of these jobs, as far as is known."""
        return any((node, job.group) not in self.unfit for job in left)

    def _hire(self, left: list[J]) -> None:
        """Start members where cores are free, and take in those that have started."""
        for number, (actor, where) in list(self.starting.items()):
            if self.ray.wait([where], timeout=0)[0]:
                del self.starting[number]
                try:
                    node, name = self.ray.get(where)
                except self.ray.exceptions.RayError:
                    continue  # its node has gone; a free core is looked for again
                self.members[number] = CrewMember(actor, node, name)
        missing = min(self.count, len(left) + len(self.members)) - len(self.members) - len(self.starting)
        if missing <= 0 or time.monotonic() - self.asked < HIRE_SECONDS:
            return
        self.asked = time.monotonic()
        free = int(self.ray.available_resources().get("CPU", 0) // self.threads)
        taken = {*self.members, *self.starting}
        numbers = [number for number in range(self.count) if number not in taken]
        nodes = [node for node in self._list_nodes() if self._fits(node, left)]
        for number in numbers[: min(missing, free)] if nodes else []:
            actor = self._start_actor(self._choose_place(nodes))
            self.starting[number] = (actor, actor.get_place.remote())

    def _start_actor(self, place: Any) -> Any:
        # Three calls at a time: the job, what it says meanwhile, and the request to stop.
        options = {"num_cpus": self.threads, "max_concurrency": 3, "scheduling_strategy": place}
        return self.create_actor(lambda kind: self.ray.remote(kind).options(**options).remote)

    def _list_nodes(self) -> list[str]:
        """The nodes that are alive and have cores."""
        return [node["NodeID"] for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]

    def _choose_place(self, nodes: list[str]) -> Any:
        """The node with the fewest members; another one if its cores are taken."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.placed.update(dict.fromkeys(nodes, 0))
        chosen = min(nodes, key=lambda node: self.placed[node])
        self.placed[chosen] += 1
        return NodeAffinitySchedulingStrategy(chosen, soft=True)

    def _give(self, member: CrewMember[J], left: list[J]) -> None:
        fitting = [job for job in left if (member.node, job.group) not in self.unfit]
        if not fitting:
            return
        job = self.choose_job(fitting, member)
        left.remove(job)
        member.job, member.group = job, job.group
        member.result = self.start_job(member.actor, job)
        member.news = member.actor.read_news.remote()

    def _fail_homeless(self, left: list[J]) -> Iterator[E]:
        """Give up jobs that no node can do."""
        if not self.unfit or self.starting:
            return
        nodes = set(self._list_nodes())
        for job in list(left):
            reasons = {node: self.unfit[node, job.group] for node in nodes if (node, job.group) in self.unfit}
            if nodes and set(reasons) == nodes:
                left.remove(job)
                words = f"No node can run it. {' '.join(sorted(set(reasons.values())))}"
                yield self.make_event("failed", 0, job, words)

    # What they say.

    def _hear(self, number: int, left: list[J]) -> Iterator[E]:
        member = self.members[number]
        if member.job is None:
            return
        try:
            ended = bool(self.ray.wait([member.result], timeout=0)[0])
            # News that a member has handed over are awaited before its result, which continues them.
            if ended or self.ray.wait([member.news], timeout=0)[0]:
                news = self.ray.get(member.news)
                yield from self.tell_news(number, member.job, news)
                member.news = None if ended else member.actor.read_news.remote()
            if not ended:
                return
            result: R = self.ray.get(member.result)
        except self.ray.exceptions.RayError as error:
            yield from self._bury(number, left, error)
            return
        job, member.job = member.job, None
        if result.unfit:
            self.unfit[member.node, job.group] = result.words
            left.insert(0, job)
            words = f"The node {member.name} is not used for {self.name_work(job)}: {result.words}"
            yield self.make_event("word", number, job, words)
        else:
            yield from self.finish_job(number, job, result)

    def _bury(self, number: int, left: list[J], error: Exception) -> Iterator[E]:
        """A member has died: its job is given to another, at most TRIES times."""
        member = self.members.pop(number)
        self.asked = float("-inf")
        job = member.job
        assert job is not None
        self.deaths[job.run] += 1
        reason = f"the member of the crew on {member.name} died ({_name_cause(error)})"
        if self.deaths[job.run] < TRIES:
            left.insert(0, job)
            words = f"A run starts again from its checkpoint: {reason}."
            yield self.make_event("word", number, job, words)
        else:
            words = f"Given up after {TRIES} tries: {reason}."
            yield self.make_event("failed", number, job, words)


def _name_cause(error: Exception) -> str:
    text = str(error)
    for sign, words in (("memory", "out of memory"), ("node", "its node is gone")):
        if sign in text.lower():
            return words
    return type(error).__name__
