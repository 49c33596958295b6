"""``lmr bench``: run plans, keep every finished run, and resume where an earlier bench stopped."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from lmr.bench.inputs import is_small_model
from lmr.bench.machine import count_cores
from lmr.bench.plans.fields import FOLDER
from lmr.bench.plans.plan import Plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.checkpoint import Checkpoint
from lmr.bench.running.pack import take_runs
from lmr.bench.running.row import Row, append_row, read_rows
from lmr.bench.running.run import SAVE_SECONDS
from lmr.bench.running.selection import select_values
from lmr.bench.running.view import View, describe_task
from lmr.bench.running.workers import WorkerPool, Workers
from lmr.core.errors import LmrError
from lmr.core.files import hold_lock, write_atomically

TRIALS = "selection"  # the folder within a folder of runs that holds the runs of plan field "select"
LOCK_SECONDS = 5.0  # for a bench that was just stopped to release its folder


StartWorkers = Callable[[Sequence[Task], Path, float], Workers]  # all tasks, folder, seconds between checkpoints


@dataclass(frozen=True)
class Failure:
    """A run without a row, and why."""

    task: Task
    message: str


@dataclass(frozen=True)
class BenchResult:
    """The rows of all finished runs of the plans, earlier ones too, and what failed."""

    rows: list[Row]
    failures: list[Failure]
    skipped: int  # runs that were finished earlier
    seconds: float

    def describe(self) -> str:
        """Return a line about the finished runs and one for every failure."""
        fresh = len(self.rows) - self.skipped
        earlier = f", {self.skipped} earlier" if self.skipped else ""
        lines = [f"{len(self.rows)} runs are finished: {fresh} now, in {self.seconds:.0f} s{earlier}."]
        if not fresh:
            lines = [f"{self.skipped} runs are finished, all of them earlier." if earlier else "No run is finished."]
        lines += [f"Failed: {describe_task(failure.task)}: {failure.message}" for failure in self.failures]
        return "\n".join(lines)


def run_bench(
    plans: Plan | Sequence[Plan],
    folder: str | os.PathLike[str] = FOLDER,
    *,
    workers: int | None = None,
    root: str | None = None,
    sources: Sequence[str | os.PathLike[str]] = (),
    save_seconds: float = SAVE_SECONDS,
    screen: TextIO | None = None,
    brief: bool = False,
    start_workers: StartWorkers | None = None,
    on_row: Callable[[Row], object] | None = None,
) -> BenchResult:
    """Run everything in the plans that has no row in ``folder`` yet; runs with a checkpoint are resumed.

    A run that fails does not stop the others. On Ctrl-C every worker saves its checkpoint first.

    Args:
        plans: What to run.
        folder: The folder of runs.
        workers: The number of processes that share the cores; by default one per core for small models, otherwise one.
        root: Where datasets are kept.
        sources: Folders of runs, or packs, whose finished runs are copied.
        save_seconds: The time between checkpoints.
        screen: Where progress is written; standard error by default.
        brief: Leave out the line about every finished run.
        start_workers: Starts other workers than processes on this machine, for all tasks. What it chooses, such as
            threads, must not depend on how many of the tasks are finished.
        on_row: Called with the row of every run that finishes now, for a tracker of experiments. If it fails, a message
            says so, and the bench goes on.
    """
    plans = [plans] if isinstance(plans, Plan) else list(plans)
    check_workers(workers)
    target = Path(folder)

    def log(message: str) -> None:
        print(f"lmr: {message}", file=screen or sys.stderr)

    def try_values(trials: Plan) -> list[Row]:
        kept = [Path(source) / TRIALS for source in sources if (Path(source) / TRIALS).is_dir()]
        return run_bench(
            trials, target / TRIALS, workers=workers, root=root, sources=kept, save_seconds=save_seconds, screen=screen,
            brief=brief, start_workers=start_workers,
        ).rows  # fmt: skip

    plans = select_values(plans, try_values, root, log)
    with _open_folder(target):
        tasks = list_tasks(plans, root, log)
        rows = _find_rows(target, tasks, log)
        for source in sources:
            taken, messages = take_runs(Path(source), target, {task.run for task in tasks} - set(rows))
            for message in [*messages, f"{len(taken)} finished runs were taken from {str(Path(source))!r}."]:
                log(message)
            rows |= taken
        _mark_selected(target, tasks, rows)
        for run in rows:
            Checkpoint(target, run).delete()
        left = [task for task in tasks if task.run not in rows]
        started = time.monotonic()
        pool = (start_workers or _start_here(workers or choose_workers(tasks)))(tasks, target, save_seconds)
        with contextlib.closing(View(left, len(tasks) - len(left), screen, brief)) as view:
            failures = _run_all(left, rows, target, pool, view, on_row)
        ordered = [rows[task.run] for task in tasks if task.run in rows]
        return BenchResult(ordered, failures, len(tasks) - len(left), time.monotonic() - started)


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[None]:
    """Create the folder and keep other benches out of it; files that a kill left incomplete are removed at the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot use the folder {str(folder)!r} for runs: {error.strerror}.") from error
    message = f"Another bench is running in {str(folder)!r}; wait for it to end or give another --out."
    with hold_lock(folder / ".lock", message, LOCK_SECONDS):
        try:
            yield
        finally:
            for path in (*folder.glob("checkpoints/.*.part"), *folder.glob("samples/.*.part")):
                path.unlink(missing_ok=True)


def leave_out_finished(
    tasks: Sequence[Task], folder: str | os.PathLike[str], sources: Sequence[str | os.PathLike[str]]
) -> list[Task]:
    """Return the tasks that have no row in ``folder`` or in ``sources``, folders of runs or packs, yet."""
    folders = [folder, *sources] if (Path(folder) / "rows.jsonl").exists() else sources
    finished = {row.run for one in folders for row in read_rows(one)[0]}
    return [task for task in tasks if task.run not in finished]


def _find_rows(folder: Path, tasks: Sequence[Task], log: Callable[[str], object]) -> dict[str, Row]:
    """Return the rows of tasks that are finished and have their samples."""
    if not (folder / "rows.jsonl").exists():
        return {}
    wanted = {task.run for task in tasks}
    rows, messages = read_rows(folder)
    for message in messages:
        log(message)
    found = {row.run: row for row in rows if row.run in wanted and (folder / "samples" / f"{row.run}.npz").exists()}
    others = sorted({row.device for task in tasks if (row := found.get(task.run)) and row.device != _kind(task.device)})
    if others:
        log(f"Finished runs on {', '.join(others)} in {str(folder)!r} are kept; for another device give another --out.")
    return found


def _mark_selected(folder: Path, tasks: Sequence[Task], rows: dict[str, Row]) -> None:
    """Write again the rows of earlier runs whose values were chosen now."""
    for task in tasks:
        if task.run in rows and task.entry.selected and rows[task.run].selected != task.entry.selected:
            rows[task.run] = replace(rows[task.run], selected=dict(task.entry.selected), label=task.entry.label)
            append_row(folder, rows[task.run])


def _kind(device: str) -> str:
    return device.partition(":")[0]


def check_workers(workers: int | None) -> int | None:
    """Return the number of workers, or None for none; raise LmrError if it is not positive."""
    if workers is not None and workers < 1:
        raise LmrError(f"Expected at least one worker, got {workers}.")
    return workers


def choose_workers(tasks: Sequence[Task]) -> int:
    """Return one worker per core for small models, which gain more from processes than from threads; otherwise one."""
    return min(count_cores(), 8) if are_small(tasks) else 1


def are_small(tasks: Sequence[Task]) -> bool:
    """Return whether the models of all tasks are small ones."""
    return all(is_small_model(*model) for model in {task.model for task in tasks})


def _start_here(workers: int) -> StartWorkers:
    """Return a function that starts processes on this machine, at most ``workers``."""
    # From the requested workers, not from those with work: the last digits of a run depend on its threads, and a
    # resumed run must have the same number as before.
    threads = max(1, count_cores() // workers)
    return lambda tasks, folder, seconds: WorkerPool(max(1, min(workers, len(tasks))), threads, folder, seconds)


def _run_all(
    tasks: list[Task],
    rows: dict[str, Row],
    folder: Path,
    workers: Workers,
    view: View,
    on_row: Callable[[Row], object] | None,
) -> list[Failure]:
    failures = []
    try:
        with workers as pool:
            for event in pool.run(tasks):
                if event.kind == "progress":
                    view.advance(event.task, event.images)
                elif event.kind == "message":
                    view.log(event.message)
                elif event.row is not None:
                    append_row(folder, event.row)
                    rows[event.row.run] = event.row
                    Checkpoint(folder, event.row.run).delete()
                    view.finish(event.task, event.row)
                    _notify(on_row, event.row, view)
                else:
                    failures.append(Failure(event.task, event.message))
                    _keep_details(folder, event.task, event.details)
                    view.fail(event.task, event.message)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(
            f"Interrupted. {view.finished} of {view.total} runs are finished and kept in {str(folder)!r}; give the "
            "same command again to resume."
        ) from stop
    return failures


def _notify(on_row: Callable[[Row], object] | None, row: Row, view: View) -> None:
    """Hand a finished row to its listener, whose errors must not end hours of work."""
    if on_row is not None:
        try:
            on_row(row)
        except Exception as error:
            view.log(f"on_row failed for the run {row.run}: {type(error).__name__}: {error}")


def _keep_details(folder: Path, task: Task, details: str) -> None:
    if details:
        (folder / "failures").mkdir(exist_ok=True)
        write_atomically(folder / "failures" / f"{task.run}.txt", f"{task.command}\n\n{details}".encode())
