"""Estimate how long runs would take on this machine: a few passes are measured, the others are counted.

What a method does with an image is its ``count_passes``, with every image past its gate. A forward of one image is
measured on the real model in small batches, a backward is that times the ratio of their arithmetic (1 where the tower
is not one of ours), and so are the prompts of methods that adapt the text tower. Where tokens are kept (``tokens.py``),
embedding is measured apart from the rest of a forward, and counted once for all runs on the same images. Reading and
corrupting images, loading models and the work between passes (optimiser, caches) are not counted.
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

from lmr.bench.flops import count_blocks, count_image
from lmr.bench.inputs import find_dataset, load_backbone, load_classifier, preprocess, strip_watch
from lmr.bench.machine import count_cores, use_threads
from lmr.bench.plans.task import Task
from lmr.bench.running.bench import check_workers, choose_workers
from lmr.bench.running.row import read_rows
from lmr.bench.running.run import create_method
from lmr.bench.running.token_cache import TIMED
from lmr.bench.running.view import describe_seconds
from lmr.core.classifier import ZeroShot
from lmr.core.passes import Passes, count_passes
from lmr.models.towers.image import VisionTower

MOST_MEASURED = 16  # images or prompts in a measured pass: larger batches hardly cost less per image
ROUNDS = 3  # after a warm-up; the median counts


class MeasuredPass(NamedTuple):
    """A measured pass: a model in a precision on a device, and the images in the pass."""

    model: str
    dtype: str
    device: str
    images: int


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of one image: to prepare it, forward, backward; and of one class prompt through the text tower.

    Where tokens are kept, ``embed`` are those of embedding it, and ``forward`` those of the rest.
    """

    prepare: float
    forward: float
    backward: float
    prompt: float | None = None  # not measured
    embed: float = 0.0


@dataclass(frozen=True)
class TimeEstimate:
    """An estimate: the passes of some runs, the measured ones, and the time they would take."""

    runs: int
    images: int  # of all runs
    methods: tuple[str, ...]
    forwards: float  # of one image through its tower
    backwards: float
    prompts: float  # passes of one class prompt through the text tower
    measured: dict[MeasuredPass, PassSeconds]
    workers: int
    threads: int  # of each worker
    seconds: float
    unknown: tuple[str, ...] = ()  # methods whose passes cannot be counted

    def describe(self) -> str:
        """Return the estimate in lines."""
        lines = [f"Runs: {self.runs}, {len(self.methods)} methods ({', '.join(self.methods)}), {self.images:,} images."]
        texts = f", and {self.prompts:,.0f} of a class prompt" if self.prompts else ""
        lines.append(f"Passes of one image: {self.forwards:,.0f} forward, {self.backwards:,.0f} backward{texts}.")
        for (model, _, _, count), seconds in self.measured.items():
            parts = {
                "embedding an image": seconds.embed,
                "a forward": seconds.forward,
                "preparing an image": seconds.prepare,
                "a prompt": seconds.prompt,
            }
            words = ", ".join(f"{what} {1000 * value:.2f} ms" for what, value in parts.items() if value)
            lines.append(f"Measured with {model}, batches of {count}, {_count(self.threads, 'thread')}: {words}.")
        if self.unknown:
            lines.append(f"Not included, as their passes cannot be counted: {', '.join(self.unknown)}.")
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
    measured: dict[MeasuredPass, PassSeconds] = {}
    labels: dict[str, None] = {}
    unknown: dict[str, None] = {}
    forwards = backwards = prompts = 0.0
    work = []
    known: dict[tuple[str, ...], tuple[Passes | None, bool]] = {}
    begun: set[tuple[str, ...]] = set()  # groups whose images are embedded
    with use_threads(threads):
        for task in sorted(tasks, key=_identify_classifier):  # a process holds one classifier at a time
            classifier = _load(task)
            key = (*_identify_classifier(task), task.entry.address)
            if key not in known:
                method = create_method(task.entry, classifier)
                known[key] = count_passes(strip_watch(method)), method.needs_images
            passes, needs_images = known[key]
            labels[task.entry.label] = None
            if passes is None:
                unknown[task.entry.label] = None
                continue
            own = _count_task(task, passes, classifier.classes)
            size = min(task.batch_size, MOST_MEASURED)
            place = MeasuredPass(task.backbone, task.dtype, task.device, size)
            seconds = measured.get(place)
            if seconds is None or (own.text_forwards and seconds.prompt is None):
                seconds = measure_passes(task, size, text=bool(own.text_forwards))
                measured[place] = seconds
            forwards, backwards = forwards + own.forwards, backwards + own.backwards
            texts = own.text_forwards + own.text_backwards
            prompts += texts
            work.append(
                (task.images + task.forgetting + task.source_images) * seconds.prepare
                + own.forwards * seconds.forward
                + seconds.embed * (own.forwards if needs_images else _count_embeddings(task, task.group in begun))
                + own.backwards * seconds.backward
                + texts * (seconds.prompt or 0.0)
            )
            begun |= set() if needs_images else {task.group}
    return TimeEstimate(
        runs=len(tasks),
        images=sum(task.images for task in tasks),
        methods=tuple(labels),
        forwards=forwards,
        backwards=backwards,
        prompts=prompts,
        measured=measured,
        workers=min(workers, len(tasks)),
        threads=threads,
        seconds=max(sum(work) / workers, max(work, default=0.0)),
        unknown=tuple(unknown),
    )


def _count_task(task: Task, passes: Passes, classes: int) -> Passes:
    """Return the passes of a whole run: of single images, and of single prompts."""
    prompts = classes * -(-task.images // task.batch_size)  # at every batch
    more = task.forgetting + task.source_images + (task.images if task.recovery else 0)
    return Passes(
        forwards=task.images * passes.forwards + more,
        backwards=task.images * passes.backwards + task.source_images,
        text_forwards=prompts * passes.text_forwards,
        text_backwards=prompts * passes.text_backwards,
    )


def _count_embeddings(task: Task, kept: bool) -> float:
    """Return the images of a run that are embedded: all, or those that are timed where a run before kept tokens."""
    return task.images / TIMED if kept else task.images + task.forgetting


def _identify_classifier(task: Task) -> tuple[str, ...]:
    return (task.backbone, task.dtype, task.device, task.dataset, task.prompts.name)


def _load(task: Task) -> ZeroShot:
    classes = find_dataset(task.dataset, task.root).classes
    return load_classifier(task.backbone, task.dtype, task.device, classes, task.prompts.templates)


def measure_passes(task: Task, count: int, *, text: bool = False) -> PassSeconds:
    """Measure single passes of a task's model, on ``count`` of its images; with ``text``, of its prompts too."""
    dataset, classifier = find_dataset(task.dataset, task.root), _load(task)
    backbone = load_backbone(task.backbone, task.dtype, task.device)
    count = min(count, dataset.count(task.domains[0]))
    arrays = dataset.read(task.domains[0], task.severity, range(count))
    images = preprocess(backbone, arrays, classifier.device)
    ratio = 1.0
    if isinstance(backbone.encoder, VisionTower):
        arithmetic = (count_blocks if classifier.keeps_tokens else count_image)(backbone.encoder)
        ratio = arithmetic.backward / arithmetic.forward
    embed = _time(lambda: classifier.embed(images)) / count if classifier.keeps_tokens else 0.0
    embedded = classifier.embed(images)
    forward = _time(lambda: classifier.features(embedded)) / count
    prompt, side = 0.0 if text else None, classifier.text
    if text and side is not None:
        part = slice(0, min(MOST_MEASURED, classifier.classes))
        prompt = _time(lambda: side.prototypes(part)) / part.stop
    prepare = _time(lambda: preprocess(backbone, arrays, classifier.device)) / count
    return PassSeconds(prepare, forward, ratio * forward, prompt, embed)


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
