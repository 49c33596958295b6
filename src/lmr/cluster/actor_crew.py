"""A crew on Ray: actors that live on the nodes of a cluster and do jobs one after the other.

A member that dies, or whose node does, costs time only: its job is given to another one, from what it has finished.
Nodes that join while the crew is at work get members too, if there is work for them. What a job is, and what becomes of
its results, is up to the crews made of this one.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from lmr.cluster.nodes import choose_node, count_free_places, shorten
from lmr.core.errors import LmrError

POLL_SECONDS = 0.5
HIRE_SECONDS = 5.0  # between looks for free cores
START_SECONDS = 180.0  # without any member that works
STOP_SECONDS = 20.0
CLOSE_SECONDS = 2.0  # for members to remove their folders
NOBODY = -1  # the number of no member, in events that are about none
TRIES = 3  # of a job whose member died, and of a node where members do not start


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


@dataclass
class Newcomer:
    """An actor that starts, the node it is meant for, and the future of where it is."""

    actor: Any
    node: str
    place: Any


class ActorCrew(ABC, Generic[J, E, R]):
    """Members with ``threads`` threads each; a context manager that ends them.

    There is room for ``count`` of them when the crew begins, and there are ``most`` of them when nodes join.
    """

    def __init__(self, ray: Any, count: int, threads: int, most: int | None = None) -> None:
        self.ray, self.count, self.threads = ray, count, threads
        self.most = count if most is None else most
        self.nodes: dict[str, float] = {}  # those that are alive and large enough, with their cores
        self.members: dict[int, CrewMember[J]] = {}
        self.starting: dict[int, Newcomer] = {}
        self.unfit: dict[tuple[str, tuple[str, ...]], str] = {}  # node and group of jobs -> why not there
        self.avoided: set[tuple[str, tuple[str, ...]]] = set()  # where a member died at such jobs, and its node did not
        self.deaths: Counter[str] = Counter()  # of members, by the job they were at
        self.failures: Counter[str] = Counter()  # members in turn that did not start, by the node they were meant for
        self.causes: dict[str, str] = {}  # of the last such failure, by node
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
            self.nodes = self._list_nodes()
            self._dismiss_useless(left)
            for words in self._hire(left):
                if left:
                    yield self.make_event("word", NOBODY, left[0], words)
            for member in self.members.values():
                if member.job is None and left:
                    self._give(member, left)
            yield from self._fail_homeless(left)
            busy = {member.result: number for number, member in self.members.items() if member.job}
            if busy:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > START_SECONDS:
                if not self.avoided:
                    raise LmrError(self._explain_idleness())
                self.avoided.clear()  # better there than nowhere
                idle_since = time.monotonic()
            waited = [*busy, *(newcomer.place for newcomer in self.starting.values())]
            if waited:
                self.ray.wait(waited, num_returns=1, timeout=POLL_SECONDS)
            elif left:
                time.sleep(POLL_SECONDS)
            for number in list(self.members):
                yield from self._hear(number, left)

    def _explain_idleness(self) -> str:
        if self.starting:
            return (
                f"No member of the crew has started within {START_SECONDS:.0f} s: its node is very slow, or the cores "
                "were taken by others; 'ray status' shows what uses them."
            )
        return "No node of the Ray cluster has a free core; 'ray status' shows what uses them."

    def stop(self) -> None:
        """Ask the members to end with what they have finished, keep that, and end all of them."""
        actors = [member.actor for member in self.members.values()]
        actors += [newcomer.actor for newcomer in self.starting.values()]
        try:
            self._collect_unfinished()
        finally:  # also after a second Ctrl-C
            self.members, self.starting = {}, {}
            self._end(actors)

    def _collect_unfinished(self) -> None:
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
                    list(self.tell_news(NOBODY, member.job, self.ray.get(member.news, timeout=STOP_SECONDS)))
            except self.ray.exceptions.RayError:
                continue
            self.keep_unfinished(member.job, result)

    def _end(self, actors: Sequence[Any]) -> None:
        """Let actors remove their folders, within a limit, and end them."""
        try:
            closing = [actor.close.remote() for actor in actors]
            if closing:
                self.ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        finally:
            for actor in actors:
                self.ray.kill(actor)

    # Members.

    def _dismiss_useless(self, left: list[J]) -> None:
        """End members on nodes that cannot do any of the jobs that are left: their cores count for others."""
        useless = [
            number
            for number, member in self.members.items()
            if member.job is None and left and not self._list_fitting(member.node, left)
        ]
        if useless:
            self._end([self.members.pop(number).actor for number in useless])
            self.asked = float("-inf")

    def _list_fitting(self, node: str, left: list[J]) -> list[J]:
        """The jobs that a node may do, as far as is known."""
        return [job for job in left if self._may_do(node, job.group)]

    def _may_do(self, node: str, group: tuple[str, ...]) -> bool:
        """Where a member died at such jobs, they are only done if no other node is left: it may lack the memory."""
        if (node, group) in self.avoided and any(self._is_good(other, group) for other in self.nodes):
            return False
        return (node, group) not in self.unfit

    def _is_good(self, node: str, group: tuple[str, ...]) -> bool:
        return (node, group) not in self.unfit and (node, group) not in self.avoided and not self._is_closed(node)

    def _is_closed(self, node: str) -> bool:
        """Whether no member is on a node because none starts there."""
        return self.failures[node] >= TRIES and not self._count_members(node)

    def _find_reason(self, node: str, group: tuple[str, ...]) -> str | None:
        """Why a node cannot do such jobs; None if it can, as far as is known."""
        if self._is_closed(node):
            return f"Members of the crew do not start there ({self.causes[node]})."
        return self.unfit.get((node, group))

    def _hire(self, left: list[J]) -> list[str]:
        """Start members where cores are free, and take in those that have started; gives words about other nodes."""
        words: list[str] = []
        for number, newcomer in list(self.starting.items()):
            if self.ray.wait([newcomer.place], timeout=0)[0]:
                del self.starting[number]
                try:
                    node, name = self.ray.get(newcomer.place)
                except self.ray.exceptions.RayError as error:  # a free core is looked for again
                    words += self._note_failure(newcomer.node, error)
                    continue
                del self.failures[node]
                self.members[number] = CrewMember(newcomer.actor, node, name)
        missing = min(self.most, len(left) + len(self.members)) - len(self.members) - len(self.starting)
        if missing <= 0 or time.monotonic() - self.asked < HIRE_SECONDS:
            return words
        self.asked = time.monotonic()
        room = self._count_room()
        numbers = [number for number in range(self.most) if number not in self.members and number not in self.starting]
        usable = [node for node in self.nodes if self.failures[node] < TRIES]
        fitting = [node for node in usable if self._list_fitting(node, left)]
        for number in numbers[:missing]:
            free = [node for node in fitting if room[node] > 0]
            if not free:
                break
            members = {node: self._count_members(node) for node in free}
            node = choose_node({node: self.nodes[node] for node in free}, members)
            room[node] -= 1
            actor = self._start_actor(node)
            self.starting[number] = Newcomer(actor, node, actor.get_place.remote())
        return words

    def _note_failure(self, node: str, error: Exception) -> list[str]:
        """A member did not start. Unless its node has gone, others will not either: it lacks lmr, or memory."""
        if node not in self.nodes:
            return []
        self.failures[node] += 1
        self.causes[node] = self._name_cause(error, shorten(error))
        if self.failures[node] != TRIES:
            return []
        name = f"{self._find_host(node)}/{node[:4]}"
        return [f"The node {name} gets no more members: {TRIES} did not start there ({self.causes[node]})."]

    def _find_host(self, node: str) -> str:
        hosts = {one["NodeID"]: one.get("NodeManagerHostname") for one in self.ray.nodes()}
        return hosts.get(node) or ""

    def _count_room(self) -> dict[str, int]:
        """The members that each node has room for beside its own; cores of actors that start may still look free."""
        free = count_free_places(self.ray, self.threads)
        return {
            node: min(free.get(node, 0), int(cores // self.threads) - self._count_members(node))
            for node, cores in self.nodes.items()
        }

    def _count_members(self, node: str) -> int:
        """Those that work on a node or are meant for it."""
        nodes = [member.node for member in self.members.values()]
        nodes += [newcomer.node for newcomer in self.starting.values()]
        return nodes.count(node)

    def _start_actor(self, node: str) -> Any:
        """An actor on a node; on another one if its cores were taken in this moment."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Without spilling, an actor waits for a node that is full while others have free cores.
        place = NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
        # Three calls at a time: the job, what it says meanwhile, and the request to stop.
        options = {"num_cpus": self.threads, "max_concurrency": 3, "scheduling_strategy": place}
        return self.create_actor(lambda kind: self.ray.remote(kind).options(**options).remote)

    def _list_nodes(self) -> dict[str, float]:
        """The nodes that are alive and have cores enough for a member, with their cores."""
        cores = {node["NodeID"]: node["Resources"].get("CPU", 0) for node in self.ray.nodes() if node["Alive"]}
        return {node: count for node, count in cores.items() if count >= self.threads}

    def _give(self, member: CrewMember[J], left: list[J]) -> None:
        fitting = self._list_fitting(member.node, left)
        if not fitting:
            return
        job = self.choose_job(fitting, member)
        left.remove(job)
        member.job, member.group = job, job.group
        member.result = self.start_job(member.actor, job)
        member.news = member.actor.read_news.remote()

    def _fail_homeless(self, left: list[J]) -> Iterator[E]:
        """Give up jobs that no node can do."""
        if self.starting or not self.nodes:
            return
        for job in list(left):
            reasons = [self._find_reason(node, job.group) for node in self.nodes]
            if None not in reasons:
                left.remove(job)
                words = f"No node can run it. {' '.join(sorted({reason for reason in reasons if reason}))}"
                yield self.make_event("failed", NOBODY, job, words)

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
        """A member has died: its job is given to another, elsewhere if possible, at most TRIES times."""
        member = self.members.pop(number)
        self._end([member.actor])  # it may only be out of reach, or without memory
        self.asked = float("-inf")
        job = member.job
        assert job is not None
        self.deaths[job.run] += 1
        lost = isinstance(error, self.ray.exceptions.NodeDiedError) or member.node not in self._list_nodes()
        if not lost:
            self.avoided.add((member.node, job.group))
        cause = "its node is gone" if lost else self._name_cause(error, type(error).__name__)
        reason = f"the member of the crew on {member.name} died ({cause})"
        if self.deaths[job.run] < TRIES:
            left.insert(0, job)
            words = f"A run starts again from its checkpoint: {reason}."
            yield self.make_event("word", number, job, words)
        else:
            words = f"Given up after {TRIES} tries: {reason}."
            yield self.make_event("failed", number, job, words)

    def _name_cause(self, error: Exception, otherwise: str) -> str:
        """By the type: Ray's words about any unexpected end mention memory."""
        if isinstance(error, (self.ray.exceptions.OutOfMemoryError, MemoryError)):
            return "out of memory"
        unreachable = isinstance(error, self.ray.exceptions.ActorUnavailableError)
        return "it cannot be reached" if unreachable else otherwise
