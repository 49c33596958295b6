"""Estimate how long runs would take on this machine: a forward is measured, the rest is counted.

The cost of a step in forwards is the one that rows hold (``count_forwards``), with every image past the gate. A forward
and the preparation of an image are measured on the real model in small batches. Where tokens are kept
(``token_cache.py``), only the first run on the same images embeds all of them. Reading and corrupting images, loading
models and the work between passes (optimiser, caches) are not counted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from lmr.bench.flops import count_forwards, count_image
from lmr.bench.inputs import find_dataset, load_backbone
from lmr.bench.machine import count_cores, use_threads
from lmr.bench.plans.task import Task
from lmr.bench.running.bench import check_workers, choose_workers
from lmr.bench.running.row import read_rows
from lmr.bench.running.run import create_method
from lmr.bench.running.token_cache import TIMED
from lmr.bench.running.view import describe_seconds
from lmr.core.classifier import ZeroShot
from lmr.models.towers.image import VisionTower

MOST_MEASURED = 16  # images in a measured pass: larger batches hardly cost less per image
ROUNDS = 3  # after a warm-up; the median counts


class PassSeconds(NamedTuple):
    """Seconds of one image: to prepare it, and forward."""

    prepare: float
    forward: float


@dataclass(frozen=True)
class TimeEstimate:
    """An estimate: the cost of some runs, the measured passes, and the time they would take."""

    runs: int
    images: int  # of all runs
    methods: tuple[str, ...]
    forwards: float  # of one image; backwards and prompts are counted as forwards
    measured: dict[
        tuple[str, str, str, int], PassSeconds
    ]  # by the model, as ``load_backbone`` takes it, and the images
    workers: int
    threads: int  # of each worker
    seconds: float
    unknown: tuple[str, ...] = ()  # methods whose passes cannot be counted

    def describe(self) -> str:
        """Return the estimate in lines."""
        lines = [f"Runs: {self.runs}, {len(self.methods)} methods ({', '.join(self.methods)}), {self.images:,} images."]
        lines.append(f"Cost: {self.forwards:,.0f} forwards of one image, backwards and prompts included.")
        for (model, _, _, count), seconds in self.measured.items():
            lines.append(
                f"Measured with {model}, batches of {count}, {_count(self.threads, 'thread')}: a forward "
                f"{1000 * seconds.forward:.2f} ms, preparing an image {1000 * seconds.prepare:.2f} ms."
            )
        if self.unknown:
            lines.append(f"Not included, as their cost cannot be counted: {', '.join(self.unknown)}.")
        processes = _count(self.workers, "process", "processes")
        return "\n".join(
            [*lines, f"Estimated time on this machine: {describe_seconds(self.seconds)} with {processes}."]
        )


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def describe_left_time(
    tasks: Sequence[Task],
    folder: str | os.PathLike[str],
    workers: int | None = None,
    sources: Sequence[str | os.PathLike[str]] = (),
) -> str:
    """Describe how long the tasks without a row in a folder of runs, or in one of the ``sources``, would take."""
    places = [*sources, folder] if (Path(folder) / "rows.jsonl").exists() else sources
    finished = {row.run for place in places for row in read_rows(place)[0]}
    left = [task for task in tasks if task.run not in finished]
    if not left:
        return f"All {len(tasks)} runs are finished."
    earlier = f"\n{len(tasks) - len(left)} more runs are finished already." if len(left) < len(tasks) else ""
    return estimate_time(left, workers).describe() + earlier


def estimate_time(tasks: Sequence[Task], workers: int | None = None) -> TimeEstimate:
    """Measure a few passes of the models of these runs and multiply; there must be at least one run."""
    workers = check_workers(workers) or choose_workers(tasks)
    threads = max(1, count_cores() // workers)
    measured: dict[tuple[str, str, str, int], PassSeconds] = {}
    forwards, work = 0.0, []
    known: dict[tuple[str, ...], tuple[float | None, bool]] = {}
    begun: set[tuple[str, ...]] = set()  # groups whose images are embedded
    unknown: dict[str, None] = {}
    tasks = sorted(tasks, key=_identify_classifier)  # a process holds one classifier at a time
    with use_threads(threads):
        for task in tasks:
            classifier = task.load_classifier()
            key = (*_identify_classifier(task), task.entry.address, str(task.batch_size))
            if key not in known:
                method = create_method(task.entry, classifier)
                known[key] = count_forwards(method, task.batch_size), method.needs_images
            each, needs_images = known[key]
            if each is None:
                unknown[task.entry.label] = None
                continue
            place = (*task.model, min(task.batch_size, MOST_MEASURED))
            if place not in measured:
                measured[place] = measure_passes(task, place[-1])
            if not needs_images and classifier.keeps_tokens:
                each -= _find_embedding_share(classifier) * (1 - 1 / TIMED) * (task.group in begun)
                begun.add(task.group)
            # A source image also has a backward, which counts as a forward here.
            own = task.images * (each + task.recovery) + task.forgetting + 2 * task.source_images
            prepared = task.images + task.forgetting + task.source_images
            work.append(prepared * measured[place].prepare + own * measured[place].forward)
            forwards += own
    return TimeEstimate(
        runs=len(tasks),
        images=sum(task.images for task in tasks),
        methods=tuple(dict.fromkeys(task.entry.label for task in tasks)),
        forwards=forwards,
        measured=measured,
        workers=min(workers, len(tasks)),
        threads=threads,
        seconds=max(sum(work) / workers, max(work, default=0.0)),
        unknown=tuple(unknown),
    )


def _find_embedding_share(classifier: ZeroShot) -> float:
    """Return the share of a forward that embeds the image, by arithmetic."""
    tower = classifier.encoder
    return 2 * tower.count_embedding() / count_image(tower).forward if isinstance(tower, VisionTower) else 0.0


def _identify_classifier(task: Task) -> tuple[str, ...]:
    return (*task.model, task.dataset, task.prompts.name)


def measure_passes(task: Task, count: int) -> PassSeconds:
    """Measure single passes of a task's model, on ``count`` of its images."""
    dataset, classifier = find_dataset(task.dataset, task.root), task.load_classifier()
    backbone = load_backbone(*task.model)
    count = min(count, dataset.count(task.domains[0]))
    arrays = dataset.read(task.domains[0], task.severity, range(count))
    images = backbone.preprocess(arrays).to(classifier.device)
    prepare = _time(lambda: backbone.preprocess(arrays).to(classifier.device)) / count
    return PassSeconds(prepare, _time(lambda: classifier.features(images)) / count)


@torch.no_grad()
def _time(work: Callable[[], object]) -> float:
    """Return the median seconds of some calls, after one that is not measured."""
    seconds = []
    for _ in range(1 + ROUNDS):
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])
