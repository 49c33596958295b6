"""The progress of a bench: on a terminal a bar for all runs and one per worker, elsewhere a line per run."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from lmr.bench.plans.task import Task
from lmr.bench.running.row import Row

REDRAW_SECONDS = 0.2


class LiveLines:
    """Lines that are drawn again and again at the end of a terminal, below lines that stay; elsewhere only these."""

    def __init__(self, screen: TextIO) -> None:
        self.screen = screen
        self.drawn = 0
        self.last = 0.0
        self.live = screen.isatty() and os.environ.get("TERM") != "dumb"

    def is_due(self) -> bool:
        """Whether it is time to draw again."""
        return self.live and time.monotonic() - self.last >= REDRAW_SECONDS

    def draw(self, lines: list[str]) -> None:
        """Show these lines in place of those that were drawn before."""
        self.last = time.monotonic()
        width = shutil.get_terminal_size().columns - 1
        self.clear()
        self.screen.write("".join(line[:width] + "\n" for line in lines))
        self.screen.flush()
        self.drawn = len(lines)

    def write(self, line: str, describe: Callable[[], list[str]]) -> None:
        """Write a line that stays; below it, on a terminal, what ``describe`` gives."""
        self.clear()
        self.screen.write(line + "\n")
        self.screen.flush()
        if self.live:
            self.draw(describe())

    def clear(self) -> None:
        """Remove the lines that were drawn."""
        if self.drawn:
            self.screen.write(f"\x1b[{self.drawn}F\x1b[J")  # up to the first line that was drawn, then clear the rest
            self.drawn = 0


class Clock:
    """Estimates how long the remaining runs will take, from the time per image of each method so far."""

    def __init__(self, tasks: Iterable[Task], workers: int) -> None:
        self.left = {task.run: (task, task.images) for task in tasks}
        self.workers = workers
        self.spent: dict[tuple[str, ...], tuple[float, int]] = {}  # seconds and images of a kind of task
        self.seen: dict[str, tuple[float, int]] = {}  # when a run last reported, and how far it was

    def advance(self, task: Task, images: int, now: float) -> None:
        """A run has classified ``images`` images so far."""
        before, done = self.seen.get(task.run, (now, images))
        if images < done:  # it was started again, from its checkpoint
            before, done = now, images
        seconds, counted = self.spent.get(_kind(task), (0.0, 0))
        self.spent[_kind(task)] = (seconds + now - before, counted + images - done)
        self.seen[task.run] = (now, images)
        self.left[task.run] = (task, task.images - images)

    def end(self, task: Task) -> None:
        """A run is over."""
        self.left.pop(task.run, None)

    def estimate(self) -> float | None:
        """Seconds until everything is done; None while nothing is known."""
        known = {kind: seconds / counted for kind, (seconds, counted) in self.spent.items() if counted}
        if not known:
            return None
        usual = sum(known.values()) / len(known)
        work = [images * known.get(_kind(task), usual) for task, images in self.left.values()]
        return max(sum(work) / self.workers, max(work, default=0.0))


def _kind(task: Task) -> tuple[str, ...]:
    return (task.contender.spec, str(task.batch_size), task.backbone, task.dataset)


class View:
    """Shows the progress of a bench; ``brief`` leaves out the lines about finished runs.

    ``describe_place`` says where a worker is, if they are not all here.
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
        self.lines: dict[int, tuple[Task, int]] = {}
        self.starts: dict[str, float] = {}
        self.live_lines = LiveLines(screen or sys.stderr)

    def advance(self, worker: int, task: Task, images: int) -> None:
        """A worker has classified ``images`` images of its task."""
        now = time.monotonic()
        self.starts.setdefault(task.run, now)
        self.clock.advance(task, images, now)
        self._take_away(task)  # from a worker that died at it
        self.lines[worker] = (task, images)
        if self.live_lines.is_due():
            self.live_lines.draw(self._describe_all())

    def finish(self, worker: int, task: Task, row: Row) -> None:
        """A run has its row."""
        now = time.monotonic()
        self.clock.advance(task, task.images, now)
        self.finished += 1
        seconds = now - self.starts.get(task.run, now)
        self._end(worker, task, f"{100 * (row.metrics['accuracy'] or 0):5.1f} %  {seconds:6.1f} s", self.brief)

    def fail(self, worker: int, task: Task, words: str) -> None:
        """A run has failed."""
        self.failed += 1
        self._end(worker, task, f"failed: {words}")

    def say(self, words: str, task: Task | None = None) -> None:
        """Show a message. A task that it is about may have lost its worker; its bar comes back with its next images."""
        if task is not None:
            self._take_away(task)
        self._write(f"lmr: {words}")

    def close(self) -> None:
        """Remove the bars from the terminal."""
        self.live_lines.clear()

    def _take_away(self, task: Task) -> None:
        self.lines = {worker: line for worker, line in self.lines.items() if line[0].run != task.run}

    def _end(self, worker: int, task: Task, outcome: str, quiet: bool = False) -> None:
        self.clock.end(task)
        self._take_away(task)
        if quiet:
            return
        left = f"  ({describe_left(self.clock.estimate())})" if self.clock.left and not self.live_lines.live else ""
        width = len(str(self.total))
        count = f"[{self.finished + self.failed:{width}}/{self.total}]"
        self._write(f"{count} {self._name_place(worker)}{describe_task(task)}  {outcome}{left}")

    def _name_place(self, worker: int) -> str:
        place = self.describe_place(worker)
        return f"{place}  " if place else ""

    def _write(self, line: str) -> None:
        self.live_lines.write(line, self._describe_all)

    def _describe_all(self) -> list[str]:
        done = self.finished + self.failed
        failed = f", {self.failed} failed" if self.failed else ""
        left = describe_left(self.clock.estimate())
        lines = [f"{draw_bar(done / self.total)} {done} of {self.total} runs{failed}, {left}"]
        for worker, (task, images) in sorted(self.lines.items()):
            lines.append(f"{draw_bar(images / task.images)} {self._name_place(worker)}{describe_task(task)}")
        return lines


def draw_bar(share: float, width: int = 20) -> str:
    """A bar of ``width`` characters."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "[" + "#" * full + "." * (width - full) + "]"


def describe_task(task: Task) -> str:
    """A task in one line."""
    words = [f"{task.contender.label:10}", task.dataset, task.domain, str(task.severity) if task.severity else ""]
    words += [task.order_words if task.order_words != "shuffle" else ""]
    words += [f"batch {task.batch_size}", f"seed {task.seed}", task.backbone]
    return " ".join(word for word in words if word)


def describe_left(seconds: float | None) -> str:
    """The time left, rounded to what is known."""
    return "time left unknown" if seconds is None else f"{describe_seconds(seconds)} left"


def describe_seconds(seconds: float) -> str:
    """A time in words, rounded as an estimate is."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"
