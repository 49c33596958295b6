"""The progress of a bench: a line for every run that ends, and on a terminal a bar for all images."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lmr.bench.plans.task import Task
from lmr.bench.running.row import Row
from lmr.core.registry import shorten_address


class View:
    """The progress of a bench on a screen: the bar at the end of a terminal, below lines that stay; else only these.

    Args:
        tasks: The runs that are left.
        finished: The number of runs that were finished earlier.
        screen: Where to write; standard error by default.
        brief: Leave out the lines about finished runs.
    """

    def __init__(self, tasks: Sequence[Task], finished: int, screen: TextIO | None = None, brief: bool = False) -> None:
        self.brief = brief
        self.total, self.finished, self.failed = len(tasks) + finished, finished, 0
        self.images: dict[str, int] = {}  # of each run that has begun or ended
        console = Console(file=screen or sys.stderr, highlight=False, markup=False)
        self.progress = Progress(
            BarColumn(20), TextColumn("{task.description}", markup=False), TimeRemainingColumn(), console=console,
            transient=True, disable=not console.is_terminal or console.is_dumb_terminal, redirect_stdout=False,
            redirect_stderr=False, refresh_per_second=5,
        )  # fmt: skip
        self._bar = self.progress.add_task("", total=sum(task.images for task in tasks))
        self.progress.start()
        self._show()

    def advance(self, task: Task, images: int) -> None:
        """Show that a worker has classified ``images`` images of its task."""
        self.images[task.run] = images
        self._show()

    def finish(self, task: Task, row: Row) -> None:
        """Show that a run has its row."""
        self.finished += 1
        self._end(task, "" if self.brief else f"{100 * (row.metrics['accuracy'] or 0):5.1f} %")

    def fail(self, task: Task, message: str) -> None:
        """Show that a run has failed."""
        self.failed += 1
        self._end(task, f"failed: {message}")

    def log(self, message: str) -> None:
        """Show a message."""
        self.progress.console.print(f"lmr: {message}", soft_wrap=True)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self.progress.stop()

    def _end(self, task: Task, result: str) -> None:
        self.advance(task, task.images)
        if result:
            count = f"[{self.finished + self.failed:{len(str(self.total))}}/{self.total}]"
            self.progress.console.print(f"{count} {describe_task(task)}  {result}", soft_wrap=True)

    def _show(self) -> None:
        failed = f", {self.failed} failed" if self.failed else ""
        text = f"{self.finished + self.failed} of {self.total} runs{failed}"
        self.progress.update(self._bar, completed=sum(self.images.values()), description=text)


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
