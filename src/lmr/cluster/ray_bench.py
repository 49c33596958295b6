"""``lmr bench --ray``: the bench of one machine with its runs as tasks on the nodes of a cluster."""

from __future__ import annotations

import functools
import math
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from lmr.bench.inputs import describe_backbone, find_dataset
from lmr.bench.plans.fields import FOLDER
from lmr.bench.plans.plan import Plan
from lmr.bench.plans.task import Task
from lmr.bench.running.bench import BenchResult, are_small, check_workers, run_bench
from lmr.bench.running.row import Row
from lmr.bench.running.run import run_task
from lmr.bench.running.workers import Event, choose_task
from lmr.cluster.nodes import check_nodes, choose_threads, find_nodes, list_versions
from lmr.cluster.tasks import TaskPool
from lmr.core.errors import LmrError, describe_error
from lmr.core.files import write_atomically
from lmr.core.registry import load_method_file


def run_ray_bench(
    ray: Any,
    plans: Sequence[Plan],
    folder: str | os.PathLike[str] = FOLDER,
    workers: int | None = None,
    root: str | None = None,
    sources: Sequence[str | os.PathLike[str]] = (),
    *,
    screen: TextIO | None = None,
) -> BenchResult:
    """Run a bench on the nodes of a cluster: the same rows and samples in ``folder``, written by this process.

    All nodes must have the same versions and, under ``root``, the same datasets. Every run has one thread for small
    models, otherwise as many as the smallest node has cores; so has a bench that is resumed, whatever is left of it.
    """
    check_workers(workers)
    nodes, shown = find_nodes(ray), screen or sys.stderr
    check_nodes(nodes, list_versions())
    for node in nodes:
        print(f"lmr: node {node.description}", file=shown)

    def start(tasks: Sequence[Task], target: Path, seconds: float) -> RayWorkers:
        threads = choose_threads(are_small(tasks), nodes)
        gpus = int(any(task.device.startswith("cuda") for task in tasks))
        return RayWorkers(ray, target, threads, workers, gpus)

    return run_bench(plans, folder, root=root, sources=sources, screen=screen, start_workers=start)


class RayWorkers:
    """The nodes of a cluster as the workers of a bench, ``most`` runs at a time; a context manager."""

    def __init__(self, ray: Any, folder: Path, threads: int, most: int | None, gpus: int = 0) -> None:
        self.folder = folder
        self._pool = TaskPool[Task, RunResult](ray, run_on_node, threads, most, gpus)

    def __enter__(self) -> RayWorkers:
        self._pool.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._pool.__exit__(*problem)

    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        """Run the tasks and yield an event when one begins and when it ends."""
        for report in self._pool.run(tasks, _choose):
            task, result = report.job, report.value
            if result is not None and result.row is not None:
                samples = self.folder / "samples"
                samples.mkdir(parents=True, exist_ok=True)
                write_atomically(samples / f"{task.run}.npz", result.samples)
                yield Event("done", report.slot, task, row=result.row)
            elif result is not None:
                yield Event("failed", report.slot, task, message=result.message, details=result.details)
            elif report.error:
                yield Event("failed", report.slot, task, message=report.error)
            else:
                yield Event("progress", report.slot, task)


def _choose(left: list[Task], last: Task | None, busy: list[Task]) -> Task:
    """Return a task of the group that the free process has model and images of, or one of a group nobody is at."""
    return choose_task(left, () if last is None else last.group, [task.group for task in busy])


@dataclass(frozen=True)
class RunResult:
    """A row and its samples, or the reason of a failure."""

    row: Row | None = None
    samples: bytes = b""
    message: str = ""
    details: str = ""


def run_on_node(task: Task) -> RunResult:
    """Run a task in this process, which keeps the model and the images of its last run. LmrError: not on this node."""
    _check_inputs(task)
    with TemporaryDirectory(prefix="lmr-run-") as folder:
        try:
            row = run_task(task, Path(folder), save_seconds=math.inf)
        except Exception as error:
            return RunResult(message=describe_error(error), details=traceback.format_exc())
        return RunResult(row, (Path(folder) / "samples" / f"{task.run}.npz").read_bytes())


def _check_inputs(task: Task) -> None:
    """Refuse a node that would give other numbers than the driver's machine."""
    entry = task.entry
    found = {
        f"method file {entry.file!r}": (entry.file and load_method_file(entry.file), entry.file_digest),
        f"dataset {task.dataset!r}": (_digest(task.dataset, task.root, task.domains, task.severity), task.data_digest),
        f"model {task.backbone!r}": (describe_backbone(task.backbone, task.dtype, task.device), task.weights),
    }
    for name, (here, there) in found.items():
        if here != there:
            raise LmrError(f"its {name} is not that of the driver's machine; give it the same files.")


@functools.cache
def _digest(name: str, root: str | None, domains: tuple[str, ...], severity: int) -> str:
    dataset = find_dataset(name, root)
    return dataset.digest_part(domains, severity or max(dataset.severities))
