"""The progress of a bench: on a terminal a bar for all runs and one per worker, elsewhere a line per run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lmr.bench.plans.task import Task
from lmr.bench.running.row import Row
from lmr.core.registry import shorten_address


class Clock:
    """Estimates how long the remaining runs will take, from the time per image of each method so far."""

    def __init__(self, tasks: Iterable[Task], workers: int) -> None:
        self.left = {task.run: (task, task.images) for task in tasks}
        self.workers = workers
        self.spent: dict[tuple[str, ...], tuple[float, int]] = {}  # seconds and images of a kind of task
        self.seen: dict[str, tuple[float, int]] = {}  # time and images of the last report of a run

    def advance(self, task: Task, images: int, now: float) -> None:
        """Note that a run has classified ``images`` images so far."""
        before, done = self.seen.get(task.run, (now, images))
        if images < done:  # it was started again, from its checkpoint
            before, done = now, images
        seconds, counted = self.spent.get(_kind(task), (0.0, 0))
        self.spent[_kind(task)] = (seconds + now - before, counted + images - done)
        self.seen[task.run] = (now, images)
        self.left[task.run] = (task, task.images - images)

    def end(self, task: Task) -> None:
        """Note that a run is over."""
        self.left.pop(task.run, None)

    def estimate(self) -> float | None:
        """Return the seconds until everything is done; None while nothing is known."""
        known = {kind: seconds / counted for kind, (seconds, counted) in self.spent.items() if counted}
        if not known:
            return None
        usual = sum(known.values()) / len(known)
        work = [images * known.get(_kind(task), usual) for task, images in self.left.values()]
        return max(sum(work) / self.workers, max(work, default=0.0))


def _kind(task: Task) -> tuple[str, ...]:
    return (task.entry.spec, str(task.batch_size), task.backbone, task.dataset)


class View:
    """The progress of a bench on a screen: bars at the end of a terminal, below lines that stay; else only these lines.

    Args:
        tasks: The runs that are left.
        finished: The number of runs that were finished earlier.
        workers: The number of workers.
        screen: Where to write; standard error by default.
        brief: Leave out the lines about finished runs.
        describe_place: Returns where a worker is; empty if all are on this machine.
    """

    def __init__(
        self,
        tasks: list[Task],
        finished: int,
        workers: int,
        screen: TextIO | None = None,
        brief: bool = False,
        describe_place: Callable[[int], str] = lambda worker: "",
    ) -> None:
        self.brief, self.describe_place = brief, describe_place
        self.total, self.finished, self.failed = len(tasks) + finished, finished, 0
        self.clock = Clock(tasks, workers)
        self.starts: dict[str, float] = {}
        console = Console(file=screen or sys.stderr, highlight=False, markup=False)
        self.on_terminal = console.is_terminal and not console.is_dumb_terminal
        self.progress = Progress(
            BarColumn(20), TextColumn("{task.description}", markup=False), console=console, transient=True,
            disable=not self.on_terminal, redirect_stdout=False, redirect_stderr=False, refresh_per_second=5,
        )  # fmt: skip
        self._bars: dict[str, TaskID] = {}  # by run; that of the whole work comes first, without a run
        self.progress.start()
        self._show_total()

    def advance(self, worker: int, task: Task, images: int) -> None:
        """Show that a worker has classified ``images`` images of its task."""
        now = time.monotonic()
        self.starts.setdefault(task.run, now)
        self.clock.advance(task, images, now)
        self._show_total()
        self._show(task.run, images / task.images, f"{self._name_place(worker)}{describe_task(task)}")

    def finish(self, worker: int, task: Task, row: Row) -> None:
        """Show that a run has its row."""
        now = time.monotonic()
        self.clock.advance(task, task.images, now)
        self.finished += 1
        seconds = now - self.starts.get(task.run, now)
        self._end(worker, task, f"{100 * (row.metrics['accuracy'] or 0):5.1f} %  {seconds:6.1f} s", self.brief)

    def fail(self, worker: int, task: Task, message: str) -> None:
        """Show that a run has failed."""
        self.failed += 1
        self._end(worker, task, f"failed: {message}")

    def log(self, message: str, task: Task | None = None) -> None:
        """Show a message. A task that it is about may have lost its worker; its bar returns with its next images."""
        if task is not None:
            self._remove(task.run)
        self._write(f"lmr: {message}")

    def close(self) -> None:
        """Remove the bars from the terminal."""
        self.progress.stop()

    def _end(self, worker: int, task: Task, result: str, quiet: bool = False) -> None:
        self.clock.end(task)
        self._remove(task.run)
        self._show_total()
        if quiet:
            return
        left = f"  ({describe_left(self.clock.estimate())})" if self.clock.left and not self.on_terminal else ""
        width = len(str(self.total))
        count = f"[{self.finished + self.failed:{width}}/{self.total}]"
        self._write(f"{count} {self._name_place(worker)}{describe_task(task)}  {result}{left}")

    def _name_place(self, worker: int) -> str:
        place = self.describe_place(worker)
        return f"{place}  " if place else ""

    def _show_total(self) -> None:
        done = self.finished + self.failed
        failed = f", {self.failed} failed" if self.failed else ""
        text = f"{done} of {self.total} runs{failed}, {describe_left(self.clock.estimate())}"
        self._show("", done / max(1, self.total), text)

    def _show(self, run: str, share: float, text: str) -> None:
        if run not in self._bars:
            self._bars[run] = self.progress.add_task(text, total=1.0)
        self.progress.update(self._bars[run], completed=share, description=text)

    def _remove(self, run: str) -> None:
        if run in self._bars:
            self.progress.remove_task(self._bars.pop(run))

    def _write(self, line: str) -> None:
        self.progress.console.print(line, soft_wrap=True)


def describe_task(task: Task) -> str:
    """Return a task in one line."""
    parts = [
        f"{task.entry.label:10}",
        shorten_address(task.dataset),
        task.domain,
        str(task.severity) if task.severity else "",
    ]
    parts += [task.order_text if task.order_text != "shuffle" else ""]
    parts += [f"batch {task.batch_size}", f"seed {task.seed}", shorten_address(task.backbone)]
    return " ".join(part for part in parts if part)


def describe_left(seconds: float | None) -> str:
    """Return the time left as text, rounded to what is known."""
    return "time left unknown" if seconds is None else f"{describe_seconds(seconds)} left"


def describe_seconds(seconds: float) -> str:
    """Return a time as text, rounded as an estimate is."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"
