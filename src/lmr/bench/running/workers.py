"""Workers: processes that run tasks one after the other and share the cores.

If a worker dies, its run fails and the bench continues; if the bench dies, its workers end.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal, Protocol

from lmr.bench.plans.task import Task
from lmr.bench.running.row import Row
from lmr.bench.running.run import Stop, run_task
from lmr.core.errors import describe_error

REPORT_SECONDS = 0.2  # between reports of one worker
STOP_SECONDS = 20.0  # for workers to save their checkpoints
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Event:
    """A report of a worker about its task."""

    kind: Literal["progress", "message", "done", "failed"]
    worker: int
    task: Task
    images: int = 0
    message: str = ""
    details: str = ""
    row: Row | None = None


class Workers(Protocol):
    """Workers, wherever they are: tasks in, events out. A context manager that ends them.

    Samples and checkpoints are written to the folder of the bench before the event about them is yielded.
    """

    def __enter__(self) -> Workers: ...
    def __exit__(self, *problem: object) -> None: ...
    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Assign the tasks and yield the events of the workers until all tasks are done or have failed."""
        ...


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    task: Task | None = None
    group: tuple[str, ...] = ()


class WorkerPool:
    """Worker processes on this machine; a context manager that ends them."""

    def __init__(self, workers: int, threads: int, folder: Path, save_seconds: float) -> None:
        self.threads, self.folder, self.save_seconds = threads, folder, save_seconds
        self.count = workers
        self.workers: dict[int, _Worker] = {}

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Assign the tasks and yield the events of the workers until all tasks are done or have failed."""
        left = list(tasks)
        while left or any(worker.task for worker in self.workers.values()):
            for number in range(self.count):
                if left and (number not in self.workers or self.workers[number].task is None):
                    self._assign(number, left)
            waiting = {worker.connection: number for number, worker in self.workers.items()}
            for connection in wait(list(waiting)):
                yield from self._receive(waiting[connection])  # type: ignore[index]

    def stop(self) -> None:
        """Ask the workers to save their checkpoints and to end; kill those that do not end in time."""
        workers, self.workers = list(self.workers.values()), {}
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
        try:
            end = time.monotonic() + STOP_SECONDS
            for worker in workers:
                worker.process.join(max(0.0, end - time.monotonic()))
        finally:  # also after a second Ctrl-C
            for worker in workers:
                worker.process.kill()
                worker.process.join()
                worker.connection.close()

    def _assign(self, number: int, left: list[Task]) -> None:
        worker = self.workers.get(number) or self._start(number)
        busy = [other.group for other in self.workers.values() if other is not worker and other.task]
        task = choose_task(left, worker.group, busy)
        left.remove(task)
        worker.task, worker.group = task, task.group
        with contextlib.suppress(OSError):  # _receive notices a dead worker
            worker.connection.send(task)

    def _start(self, number: int) -> _Worker:
        ours, theirs = multiprocessing.Pipe()
        with _limit_threads(self.threads), _hold_interrupts():
            given = (theirs, self.folder, self.threads, self.save_seconds, dict(os.environ))
            process = _find_context().Process(target=serve, args=given, name=f"worker {number}")
            process.start()
        theirs.close()  # so that the end of the worker is the end of the pipe
        self.workers[number] = _Worker(process, ours)
        return self.workers[number]

    def _receive(self, number: int) -> Iterator[Event]:
        worker = self.workers[number]
        try:
            event: Event = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            worker.connection.close()
            del self.workers[number]
            if worker.task is not None:
                message = f"Its process {explain_exit(worker.process.exitcode)}."
                yield Event("failed", number, worker.task, message=message)
            return
        if event.kind in ("done", "failed"):
            worker.task = None
        yield replace(event, worker=number)


def _find_context() -> ForkServerContext | SpawnContext:
    """Return how workers start: as copies of a process that has imported torch, which takes seconds.

    That process lives as long as this one, has run nothing and started no thread. Only Linux copies it safely.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    multiprocessing.set_forkserver_preload([__name__])
    return multiprocessing.get_context("forkserver")


def choose_task(left: Sequence[Task], group: tuple[str, ...], busy: Sequence[tuple[str, ...]]) -> Task:
    """Return the next task: of the worker's loaded group, else of a group without a worker, else the first."""
    same = (task for task in left if task.group == group)
    fresh = (task for task in left if task.group not in busy)
    return next(same, None) or next(fresh, None) or left[0]


def explain_exit(code: int | None) -> str:
    """Return why a process ended, as text."""
    if code is not None and code < 0:
        more = "; perhaps there was not enough memory" if -code == signal.SIGKILL else ""
        return f"was killed by the signal {signal.Signals(-code).name}{more}"
    return f"ended with code {code}"


@contextlib.contextmanager
def _limit_threads(threads: int) -> Iterator[None]:
    """Limit the threads of processes that are started within this context."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the end of this context, and for good in processes that are started within it.

    The first worker takes a second to start. If Ctrl-C were ignored meanwhile, it would be lost.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # its start would let signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(
    connection: Connection, folder: Path, threads: int, save_seconds: float, environment: Mapping[str, str]
) -> None:
    """Run tasks until there are no more or the bench, which alone handles Ctrl-C, ends."""
    import torch

    os.environ.clear()  # that of the first bench, where a process runs several
    os.environ.update(environment)
    gc.freeze()  # measuring memory collects garbage for every run, and there is none in the modules
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, OSError, Stop):
        while (task := connection.recv()) is not None:
            _serve_task(task, connection, folder, save_seconds)


def _serve_task(task: Task, connection: Connection, folder: Path, save_seconds: float) -> None:
    last = 0.0

    def report(images: int) -> None:
        nonlocal last
        if connection.poll():  # the only message to a busy worker is to stop
            raise Stop
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            connection.send(Event("progress", 0, task, images))

    def log(message: str) -> None:
        connection.send(Event("message", 0, task, message=message))

    try:
        row = run_task(task, folder, report, log, save_seconds)
    except Stop:
        raise
    except Exception as error:
        connection.send(Event("failed", 0, task, message=describe_error(error), details=traceback.format_exc()))
    else:
        connection.send(Event("done", 0, task, row=row))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
