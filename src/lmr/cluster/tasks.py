"""Jobs as Ray tasks. Ray places them, and repeats those whose process or node dies."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from lmr.cluster.nodes import describe_mismatch, list_versions, shorten
from lmr.core.errors import LmrError

DATA_VARIABLE = "LMR_DATA"  # where datasets are kept, unless a node has a place of its own
RETRIES = 3  # of a job whose process or node died
LOOK_SECONDS = 5.0  # between looks for nodes that have joined

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True)
class Surroundings:
    """What every process has in common with the driver: versions, threads, where paths start, where datasets are."""

    threads: int
    versions: Mapping[str, str] = field(default_factory=list_versions)
    folder: str = field(default_factory=os.getcwd)
    data: str | None = field(default_factory=lambda: os.environ.get(DATA_VARIABLE))

    def enter(self) -> None:
        """Prepare this process; LmrError if its answers would differ from the driver's."""
        import torch

        if wrong := describe_mismatch(list_versions(), self.versions):
            raise LmrError(f"it has {wrong}; install the same versions on every node.")
        torch.set_num_threads(self.threads)
        with contextlib.suppress(OSError):  # a file that is not found without it is named later
            os.chdir(self.folder)
        if self.data is not None:
            os.environ.setdefault(DATA_VARIABLE, self.data)
        _spare_modules()


@functools.cache
def _spare_modules() -> None:
    gc.freeze()  # measuring memory collects garbage for every run, and there is none in the modules, Ray's least


@dataclass(frozen=True)
class Report(Generic[J, R]):
    """A job that has begun (neither value nor error), has its value, or was given up because its processes died."""

    job: J
    slot: int  # jobs at the same time have different ones
    node: str = ""
    value: R | None = None
    error: str = ""


class TaskPool(Generic[J, R]):
    """Runs ``work(job)`` on the nodes of a cluster; a context manager that cancels what still runs.

    ``work`` raises LmrError only where its node cannot do the work as the driver's machine would. This ends the whole
    pool: the node would fail the other jobs, too. A job has this number of threads and GPUs of its node to itself.
    """

    def __init__(self, ray: Any, work: Callable[[J], R], threads: int, most: int | None = None, gpus: int = 0) -> None:
        self.ray, self.most, self.needs = ray, most, {"CPU": threads} | ({"GPU": gpus} if gpus else {})
        self._remote = ray.remote(_do).options(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)
        self._work = ray.put((work, Surroundings(threads)))  # once for all jobs
        self._running: dict[Any, tuple[int, J]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        for future in self._running:
            self.ray.cancel(future, force=True)

    def run(
        self, jobs: Sequence[J], choose: Callable[[list[J], J | None, list[J]], J] = lambda left, last, busy: left[0]
    ) -> Iterator[Report[J, R]]:
        """Run all jobs, as many at a time as have room, and yield reports as they begin and end.

        ``choose`` picks the next job from those that are left, given the job that ended last, whose process is the one
        that is free now, and the jobs that run.
        """
        left, last = list(jobs), None
        while left or self._running:
            room = self._count_places() if left else 0
            while left and len(self._running) < room:
                job = choose(left, last, [job for _, job in self._running.values()])
                left.remove(job)
                taken = {slot for slot, _ in self._running.values()}
                slot = min(set(range(len(taken) + 1)) - taken)
                self._running[self._remote.remote(self._work, job)] = slot, job
                yield Report(job, slot)
            for future in self.ray.wait(list(self._running), timeout=LOOK_SECONDS)[0]:
                slot, last = self._running.pop(future)
                yield self._hear(future, slot, last)

    def _count_places(self) -> int:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        each = (min(int(node.get(name, 0) // need) for name, need in self.needs.items()) for node in nodes)
        places = max(1, sum(each))
        return min(self.most or places, places)

    def _hear(self, future: Any, slot: int, job: J) -> Report[J, R]:
        try:
            node, value = self.ray.get(future)
        except self.ray.exceptions.RayTaskError as error:
            raise LmrError(str(error.cause) if isinstance(error.cause, LmrError) else shorten(error)) from error
        except self.ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {shorten(error)}"
            return Report(job, slot, error=f"Given up: its process died {RETRIES + 1} times ({reason}).")
        return Report(job, slot, node, value)


def _do(given: tuple[Callable[[J], R], Surroundings], job: J) -> tuple[str, R]:
    """Do a job in a process of Ray; return the name of the node and the value."""
    import ray

    node = f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:4]}"
    work, surroundings = given
    try:
        surroundings.enter()
        return node, work(job)
    except (LmrError, OSError) as error:
        raise LmrError(f"The node {node} cannot do its part: {error}") from error
