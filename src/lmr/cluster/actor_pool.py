"""A pool on Ray: actors that live on the nodes of a cluster and do jobs one after the other.

A worker that dies, or whose node does, costs time only: its job is given to another one, from what it has finished.
Nodes that join while the pool is at work get workers too, if there is work for them. What a job is, and what becomes of
its results, is up to the pools made of this one.
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
START_SECONDS = 180.0  # without any worker that works
STOP_SECONDS = 20.0
CLOSE_SECONDS = 2.0  # for workers to remove their folders
NOBODY = -1  # the number of no worker, in events that are about none
TRIES = 3  # of a job whose worker died, and of a node where workers do not start


class PoolJob(Protocol):
    """Something that one worker does."""

    @property
    def run(self) -> str:
        """Return a name that no other job has."""
        ...

    @property
    def group(self) -> tuple[str, ...]:
        """Return the group of the job: a node that cannot do one job of a group cannot do the others."""
        ...


class JobResult(Protocol):
    """The end of a job on a worker, as every pool needs it."""

    @property
    def unfit(self) -> bool:
        """Return True if the node, not the job, is the reason that it was not done: another node may do it."""
        ...

    @property
    def message(self) -> str:
        """Return the reason that it was not done."""
        ...


J = TypeVar("J", bound=PoolJob)
E = TypeVar("E")
R = TypeVar("R", bound=JobResult)


@dataclass
class PoolWorker(Generic[J]):
    """An actor, where it is and what it does."""

    actor: Any
    node: str  # Ray's id of its node
    name: str
    job: J | None = None
    result: Any = None  # future of the job's result
    progress: Any = None  # future of what it says meanwhile
    group: tuple[str, ...] = ()


@dataclass
class Newcomer:
    """An actor that starts, the node it is meant for, and the future of where it is."""

    actor: Any
    node: str
    place: Any


class ActorPool(ABC, Generic[J, E, R]):
    """Workers with ``threads`` threads each; a context manager that ends them.

    There is room for ``count`` of them when the pool begins, and there are ``most`` of them when nodes join.
    """

    def __init__(self, ray: Any, count: int, threads: int, most: int | None = None) -> None:
        self.ray, self.count, self.threads = ray, count, threads
        self.most = count if most is None else most
        self.nodes: dict[str, float] = {}  # those that are alive and large enough, with their cores
        self.workers: dict[int, PoolWorker[J]] = {}
        self.starting: dict[int, Newcomer] = {}
        self.unfit: dict[tuple[str, tuple[str, ...]], str] = {}  # node and group of jobs -> why not there
        self.avoided: set[tuple[str, tuple[str, ...]]] = set()  # where a worker died at such jobs, and its node did not
        self.deaths: Counter[str] = Counter()  # of workers, by the job they were at
        self.failures: Counter[str] = Counter()  # workers in turn that did not start, by the node they were meant for
        self.causes: dict[str, str] = {}  # of the last such failure, by node
        self.asked = float("-inf")  # when free cores were last looked for

    # The handling of jobs, in subclasses.

    @abstractmethod
    def create_actor(self, make: Any) -> Any:
        """Create an actor; ``make(Class)`` gives what is called with the arguments of the class."""

    @abstractmethod
    def choose_job(self, fitting: Sequence[J], worker: PoolWorker[J]) -> J:
        """Return the job that a worker does next."""

    @abstractmethod
    def start_job(self, actor: Any, job: J) -> Any:
        """Let an actor do a job; gives the future of its result."""

    @abstractmethod
    def report_progress(self, number: int, job: J, progress: Any) -> Iterator[E]:
        """Keep what a worker has sent while it is at work."""

    @abstractmethod
    def finish_job(self, number: int, job: J, result: R) -> Iterator[E]:
        """Keep the result of a job, or say why there is none."""

    @abstractmethod
    def keep_unfinished(self, job: J, result: R) -> None:
        """Keep what a worker that was stopped has finished."""

    @abstractmethod
    def make_event(self, kind: Literal["message", "failed"], number: int, job: J, message: str) -> E:
        """Return an event that is only a message."""

    @abstractmethod
    def name_work(self, job: J) -> str:
        """Return the name of the work that an unfit node is not used for."""

    # The pool.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def describe(self, worker: int) -> str:
        """Return the node of a worker."""
        found = self.workers.get(worker)
        return found.name if found else ""

    def run(self, tasks: Sequence[J]) -> Iterator[E]:
        """Assign the jobs and yield events until all are done or have failed."""
        left, idle_since = list(tasks), time.monotonic()
        while left or any(worker.job for worker in self.workers.values()):
            self.nodes = self._list_nodes()
            self._dismiss_useless(left)
            for message in self._hire(left):
                if left:
                    yield self.make_event("message", NOBODY, left[0], message)
            for worker in self.workers.values():
                if worker.job is None and left:
                    self._give(worker, left)
            yield from self._fail_unplaceable(left)
            busy = {worker.result: number for number, worker in self.workers.items() if worker.job}
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
            for number in list(self.workers):
                yield from self._hear(number, left)

    def _explain_idleness(self) -> str:
        if self.starting:
            return (
                f"No worker has started within {START_SECONDS:.0f} s: its node is very slow, or the cores "
                "were taken by others; 'ray status' shows what uses them."
            )
        return "No node of the Ray cluster has a free core; 'ray status' shows what uses them."

    def stop(self) -> None:
        """Ask the workers to end with what they have finished, keep that, and end all of them."""
        actors = [worker.actor for worker in self.workers.values()]
        actors += [newcomer.actor for newcomer in self.starting.values()]
        try:
            self._collect_unfinished()
        finally:  # also after a second Ctrl-C
            self.workers, self.starting = {}, {}
            self._end(actors)

    def _collect_unfinished(self) -> None:
        working = [worker for worker in self.workers.values() if worker.job]
        for worker in working:
            worker.actor.stop.remote()
        end = time.monotonic() + STOP_SECONDS
        for worker in working:
            if worker.job is None:
                continue
            try:
                result: R = self.ray.get(worker.result, timeout=max(0.1, end - time.monotonic()))
                if worker.progress is not None:
                    list(self.report_progress(NOBODY, worker.job, self.ray.get(worker.progress, timeout=STOP_SECONDS)))
            except self.ray.exceptions.RayError:
                continue
            self.keep_unfinished(worker.job, result)

    def _end(self, actors: Sequence[Any]) -> None:
        """Let actors remove their folders, within a limit, and end them."""
        try:
            closing = [actor.close.remote() for actor in actors]
            if closing:
                self.ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        finally:
            for actor in actors:
                self.ray.kill(actor)

    # Workers.

    def _dismiss_useless(self, left: list[J]) -> None:
        """End workers on nodes that cannot do any of the jobs that are left: their cores count for others."""
        useless = [
            number
            for number, worker in self.workers.items()
            if worker.job is None and left and not self._list_fitting(worker.node, left)
        ]
        if useless:
            self._end([self.workers.pop(number).actor for number in useless])
            self.asked = float("-inf")

    def _list_fitting(self, node: str, left: list[J]) -> list[J]:
        """Return the jobs that a node may do, as far as is known."""
        return [job for job in left if self._may_do(node, job.group)]

    def _may_do(self, node: str, group: tuple[str, ...]) -> bool:
        """Avoid nodes where a worker died at such jobs unless no other is left: they may lack the memory."""
        if (node, group) in self.avoided and any(self._is_good(other, group) for other in self.nodes):
            return False
        return (node, group) not in self.unfit

    def _is_good(self, node: str, group: tuple[str, ...]) -> bool:
        return (node, group) not in self.unfit and (node, group) not in self.avoided and not self._is_closed(node)

    def _is_closed(self, node: str) -> bool:
        """Return True if no worker is on a node because none starts there."""
        return self.failures[node] >= TRIES and not self._count_workers(node)

    def _find_reason(self, node: str, group: tuple[str, ...]) -> str | None:
        """Return why a node cannot do such jobs; None if it can, as far as is known."""
        if self._is_closed(node):
            return f"Workers do not start there ({self.causes[node]})."
        return self.unfit.get((node, group))

    def _hire(self, left: list[J]) -> list[str]:
        """Start workers on free cores, and take in those that have started; return messages about other nodes."""
        messages: list[str] = []
        for number, newcomer in list(self.starting.items()):
            if self.ray.wait([newcomer.place], timeout=0)[0]:
                del self.starting[number]
                try:
                    node, name = self.ray.get(newcomer.place)
                except self.ray.exceptions.RayError as error:  # a free core is looked for again
                    messages += self._note_failure(newcomer.node, error)
                    continue
                del self.failures[node]
                self.workers[number] = PoolWorker(newcomer.actor, node, name)
        missing = min(self.most, len(left) + len(self.workers)) - len(self.workers) - len(self.starting)
        if missing <= 0 or time.monotonic() - self.asked < HIRE_SECONDS:
            return messages
        self.asked = time.monotonic()
        room = self._count_room()
        numbers = [number for number in range(self.most) if number not in self.workers and number not in self.starting]
        usable = [node for node in self.nodes if self.failures[node] < TRIES]
        fitting = [node for node in usable if self._list_fitting(node, left)]
        for number in numbers[:missing]:
            free = [node for node in fitting if room[node] > 0]
            if not free:
                break
            workers = {node: self._count_workers(node) for node in free}
            node = choose_node({node: self.nodes[node] for node in free}, workers)
            room[node] -= 1
            actor = self._start_actor(node)
            self.starting[number] = Newcomer(actor, node, actor.get_place.remote())
        return messages

    def _note_failure(self, node: str, error: Exception) -> list[str]:
        """Return a worker did not start. Unless its node has gone, others will not either: it lacks lmr, or memory."""
        if node not in self.nodes:
            return []
        self.failures[node] += 1
        self.causes[node] = self._name_cause(error, shorten(error))
        if self.failures[node] != TRIES:
            return []
        name = f"{self._find_host(node)}/{node[:4]}"
        return [f"The node {name} gets no more workers: {TRIES} did not start there ({self.causes[node]})."]

    def _find_host(self, node: str) -> str:
        hosts = {one["NodeID"]: one.get("NodeManagerHostname") for one in self.ray.nodes()}
        return hosts.get(node) or ""

    def _count_room(self) -> dict[str, int]:
        """Return the number of further workers that each node has room for, without cores of starting actors."""
        free = count_free_places(self.ray, self.threads)
        return {
            node: min(free.get(node, 0), int(cores // self.threads) - self._count_workers(node))
            for node, cores in self.nodes.items()
        }

    def _count_workers(self, node: str) -> int:
        """Return those that work on a node or are meant for it."""
        nodes = [worker.node for worker in self.workers.values()]
        nodes += [newcomer.node for newcomer in self.starting.values()]
        return nodes.count(node)

    def _start_actor(self, node: str) -> Any:
        """Return an actor on a node; on another one if its cores were taken in this moment."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Without spilling, an actor waits for a node that is full while others have free cores.
        place = NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)
        # Three calls at a time: the job, what it says meanwhile, and the request to stop.
        options = {"num_cpus": self.threads, "max_concurrency": 3, "scheduling_strategy": place}
        return self.create_actor(lambda kind: self.ray.remote(kind).options(**options).remote)

    def _list_nodes(self) -> dict[str, float]:
        """Return the nodes that are alive and have cores enough for a worker, with their cores."""
        cores = {node["NodeID"]: node["Resources"].get("CPU", 0) for node in self.ray.nodes() if node["Alive"]}
        return {node: count for node, count in cores.items() if count >= self.threads}

    def _give(self, worker: PoolWorker[J], left: list[J]) -> None:
        fitting = self._list_fitting(worker.node, left)
        if not fitting:
            return
        job = self.choose_job(fitting, worker)
        left.remove(job)
        worker.job, worker.group = job, job.group
        worker.result = self.start_job(worker.actor, job)
        worker.progress = worker.actor.read_progress.remote()

    def _fail_unplaceable(self, left: list[J]) -> Iterator[E]:
        """Give up jobs that no node can do."""
        if self.starting or not self.nodes:
            return
        for job in list(left):
            reasons = [self._find_reason(node, job.group) for node in self.nodes]
            if None not in reasons:
                left.remove(job)
                message = f"No node can run it. {' '.join(sorted({reason for reason in reasons if reason}))}"
                yield self.make_event("failed", NOBODY, job, message)

    # What they say.

    def _hear(self, number: int, left: list[J]) -> Iterator[E]:
        worker = self.workers[number]
        if worker.job is None:
            return
        try:
            ended = bool(self.ray.wait([worker.result], timeout=0)[0])
            # Progress that a worker has handed over are awaited before its result, which continues them.
            if ended or self.ray.wait([worker.progress], timeout=0)[0]:
                progress = self.ray.get(worker.progress)
                yield from self.report_progress(number, worker.job, progress)
                worker.progress = None if ended else worker.actor.read_progress.remote()
            if not ended:
                return
            result: R = self.ray.get(worker.result)
        except self.ray.exceptions.RayError as error:
            yield from self._bury(number, left, error)
            return
        job, worker.job = worker.job, None
        if result.unfit:
            self.unfit[worker.node, job.group] = result.message
            left.insert(0, job)
            message = f"The node {worker.name} is not used for {self.name_work(job)}: {result.message}"
            yield self.make_event("message", number, job, message)
        else:
            yield from self.finish_job(number, job, result)

    def _bury(self, number: int, left: list[J], error: Exception) -> Iterator[E]:
        """Return a worker has died: its job is given to another, elsewhere if possible, at most TRIES times."""
        worker = self.workers.pop(number)
        self._end([worker.actor])  # it may only be out of reach, or without memory
        self.asked = float("-inf")
        job = worker.job
        assert job is not None
        self.deaths[job.run] += 1
        lost = isinstance(error, self.ray.exceptions.NodeDiedError) or worker.node not in self._list_nodes()
        if not lost:
            self.avoided.add((worker.node, job.group))
        cause = "its node is gone" if lost else self._name_cause(error, type(error).__name__)
        reason = f"the worker on {worker.name} died ({cause})"
        if self.deaths[job.run] < TRIES:
            left.insert(0, job)
            message = f"A run starts again from its checkpoint: {reason}."
            yield self.make_event("message", number, job, message)
        else:
            message = f"Given up after {TRIES} tries: {reason}."
            yield self.make_event("failed", number, job, message)

    def _name_cause(self, error: Exception, otherwise: str) -> str:
        """Name the cause by the type of the error: Ray's message about any unexpected end mentions memory."""
        if isinstance(error, (self.ray.exceptions.OutOfMemoryError, MemoryError)):
            return "out of memory"
        unreachable = isinstance(error, self.ray.exceptions.ActorUnavailableError)
        return "it cannot be reached" if unreachable else otherwise
