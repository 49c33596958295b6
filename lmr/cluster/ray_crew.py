"""The crew of a bench on Ray: actors that live on the nodes of a cluster, in place of processes on one machine.

A member that dies, or whose node does, costs time only: its task is given to another one, from its last checkpoint.
Nodes that join while the bench runs get members too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.bench.plans.task import Task
from lmr.bench.running.crew import Event, choose_task
from lmr.cluster.bench_actor import BenchActor, CheckpointFiles, News, TaskResult
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

POLL_SECONDS = 0.5
HIRE_SECONDS = 5.0  # between looks for free cores
START_SECONDS = 180.0  # without any member that works
STOP_SECONDS = 20.0
TRIES = 3  # of a task whose member died


@dataclass
class _Member:
    actor: Any
    node: str  # Ray's id of its node
    name: str
    task: Task | None = None
    result: Any = None  # future of the task's result
    news: Any = None  # future of what it says meanwhile
    group: tuple[str, ...] = ()


class RayCrew:
    """Up to ``count`` members with ``threads`` threads each; a context manager that ends them."""

    def __init__(
        self, ray: Any, count: int, threads: int, folder: Path, save_seconds: float, versions: Mapping[str, str]
    ) -> None:
        self.ray, self.count, self.threads, self.folder, self.save_seconds = ray, count, threads, folder, save_seconds
        self.versions = versions
        self.members: dict[int, _Member] = {}
        self.starting: dict[int, tuple[Any, Any]] = {}  # actors, and futures of where they are
        self.unfit: dict[tuple[str, tuple[str, ...]], str] = {}  # node and group of tasks -> why not there
        self.deaths: Counter[str] = Counter()  # of members, by the run they were at
        self.placed: Counter[str] = Counter()  # members that were started, by the node they were meant for
        self.asked = float("-inf")  # when free cores were last looked for

    def __enter__(self) -> RayCrew:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def describe(self, worker: int) -> str:
        """The node of a member."""
        member = self.members.get(worker)
        return member.name if member else ""

    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Assign the tasks and yield events until all are done or have failed."""
        left, idle_since = list(tasks), time.monotonic()
        while left or any(member.task for member in self.members.values()):
            self._dismiss_useless(left)
            self._hire(left)
            for number, member in self.members.items():
                if member.task is None and left:
                    self._give(member, number, left)
            yield from self._fail_homeless(left)
            busy = {member.result: number for number, member in self.members.items() if member.task}
            if busy:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > START_SECONDS:
                raise LmrError("No node of the Ray cluster has a free core; 'ray status' shows what uses them.")
            waited = [*busy, *(where for _, where in self.starting.values())]
            if waited:
                self.ray.wait(waited, num_returns=1, timeout=POLL_SECONDS)
            else:
                time.sleep(POLL_SECONDS)
            for number in list(self.members):
                yield from self._hear(number, left)

    def stop(self) -> None:
        """Ask the members to save their checkpoints and to end, keep these, and end all of them."""
        working = [member for member in self.members.values() if member.task]
        for member in working:
            member.actor.stop.remote()
        end = time.monotonic() + STOP_SECONDS
        for member in working:
            try:
                result: TaskResult = self.ray.get(member.result, timeout=max(0.1, end - time.monotonic()))
            except self.ray.exceptions.RayError:
                continue
            if result.checkpoint is not None and member.task is not None:
                result.checkpoint.write(self.folder, member.task.run)
        actors = [member.actor for member in self.members.values()] + [actor for actor, _ in self.starting.values()]
        closing = [actor.close.remote() for actor in actors]
        if closing:
            self.ray.wait(closing, num_returns=len(closing), timeout=2.0)
        for actor in actors:
            self.ray.kill(actor)
        self.members, self.starting = {}, {}

    # Members.

    def _dismiss_useless(self, left: list[Task]) -> None:
        """End members on nodes that cannot do any of the tasks that are left: their cores count for others."""
        for number, member in list(self.members.items()):
            if member.task is None and left and not self._fits(member.node, left):
                self.ray.kill(member.actor)
                del self.members[number]
                self.asked = float("-inf")

    def _fits(self, node: str, left: list[Task]) -> bool:
        """Whether a node can do any of these tasks, as far as is known."""
        return any((node, task.group) not in self.unfit for task in left)

    def _hire(self, left: list[Task]) -> None:
        """Start members where cores are free, and take in those that have started."""
        for number, (actor, where) in list(self.starting.items()):
            if self.ray.wait([where], timeout=0)[0]:
                del self.starting[number]
                try:
                    node, name = self.ray.get(where)
                except self.ray.exceptions.RayError:
                    continue  # its node has gone; a free core is looked for again
                self.members[number] = _Member(actor, node, name)
        missing = min(self.count, len(left) + len(self.members)) - len(self.members) - len(self.starting)
        if missing <= 0 or time.monotonic() - self.asked < HIRE_SECONDS:
            return
        self.asked = time.monotonic()
        free = int(self.ray.available_resources().get("CPU", 0) // self.threads)
        taken = {*self.members, *self.starting}
        numbers = [number for number in range(self.count) if number not in taken]
        nodes = [node for node in self._list_nodes() if self._fits(node, left)]
        for number in numbers[: min(missing, free)] if nodes else []:
            actor = (
                self.ray.remote(BenchActor)
                .options(num_cpus=self.threads, max_concurrency=3, scheduling_strategy=self._choose_place(nodes))
                .remote(self.threads, self.save_seconds, self.versions)
            )
            self.starting[number] = (actor, actor.get_place.remote())

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

    def _give(self, member: _Member, number: int, left: list[Task]) -> None:
        fitting = [task for task in left if (member.node, task.group) not in self.unfit]
        if not fitting:
            return
        busy = [other.group for other in self.members.values() if other is not member and other.task]
        task = choose_task(fitting, member.group, busy)
        left.remove(task)
        member.task, member.group = task, task.group
        member.result = member.actor.run.remote(task, CheckpointFiles.read(self.folder, task.run))
        member.news = member.actor.read_news.remote()

    def _fail_homeless(self, left: list[Task]) -> Iterator[Event]:
        """Give up tasks that no node can do."""
        if not self.unfit or self.starting:
            return
        nodes = set(self._list_nodes())
        for task in list(left):
            reasons = {node: self.unfit[node, task.group] for node in nodes if (node, task.group) in self.unfit}
            if nodes and set(reasons) == nodes:
                left.remove(task)
                yield Event("failed", 0, task, words=f"No node can run it. {' '.join(sorted(set(reasons.values())))}")

    # What they say.

    def _hear(self, number: int, left: list[Task]) -> Iterator[Event]:
        member = self.members[number]
        if member.task is None:
            return
        try:
            if self.ray.wait([member.news], timeout=0)[0]:
                yield from self._tell(number, member.task, self.ray.get(member.news))
                member.news = member.actor.read_news.remote()
            if not self.ray.wait([member.result], timeout=0)[0]:
                return
            result: TaskResult = self.ray.get(member.result)
        except self.ray.exceptions.RayError as error:
            yield from self._bury(number, left, error)
            return
        task, member.task = member.task, None
        if result.unfit:
            self.unfit[member.node, task.group] = result.words
            left.insert(0, task)
            yield Event(
                "word", number, task, words=f"The node {member.name} is not used for {task.dataset}: {result.words}"
            )
        elif result.row is None:
            yield Event("failed", number, task, words=result.words, details=result.details)
        else:
            samples = self.folder / "samples"
            samples.mkdir(parents=True, exist_ok=True)
            write_atomically(samples / f"{task.run}.npz", result.samples)
            yield Event("done", number, task, row=result.row)

    def _tell(self, number: int, task: Task, news: News) -> Iterator[Event]:
        if news.checkpoint is not None:
            news.checkpoint.write(self.folder, task.run)
        for words in news.words:
            yield Event("word", number, task, words=words)
        if news.images is not None:
            yield Event("progress", number, task, images=news.images)

    def _bury(self, number: int, left: list[Task], error: Exception) -> Iterator[Event]:
        """A member has died: its task is given to another, at most TRIES times."""
        member = self.members.pop(number)
        self.asked = float("-inf")
        task = member.task
        assert task is not None
        self.deaths[task.run] += 1
        reason = f"the member of the crew on {member.name} died ({_name_cause(error)})"
        if self.deaths[task.run] < TRIES:
            left.insert(0, task)
            yield Event("word", number, task, words=f"A run starts again from its checkpoint: {reason}.")
        else:
            yield Event("failed", number, task, words=f"Given up after {TRIES} tries: {reason}.")


def _name_cause(error: Exception) -> str:
    text = str(error)
    for sign, words in (("memory", "out of memory"), ("node", "its node is gone")):
        if sign in text.lower():
            return words
    return type(error).__name__
