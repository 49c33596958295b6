"""Measure the cost of a step: memory in fresh processes, then time with the entries alternating in one process."""

from __future__ import annotations

import dataclasses
import datetime
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmr.bench.cost.model import LONGEST, SHORTEST, MeasuredModel, ModelSource, find_measured_model
from lmr.bench.flops import count_forwards
from lmr.bench.machine import call_fresh, count_cores, describe_machine, measure_peak, use_threads
from lmr.bench.table import format_table
from lmr.core.card import Tower
from lmr.core.classifier import digest_tensors
from lmr.core.errors import LmrError
from lmr.core.files import check_folder, write_atomically
from lmr.core.progress import ProgressBar, show_progress
from lmr.core.registry import create, expand_methods, find_addressed, split_address

FILES = ("cost.txt", "cost.json")
FORWARD = "forward"  # the entry that all others are compared with: the frozen model
FEWEST, MOST = 3, 30  # rounds when a budget of minutes decides
_FEW_IMAGES, _FEW_CLASSES = 2, 12  # in the warm-up before memory is measured

LEGEND = """\
ms/image: median over the rounds, followed by the smallest and the largest; the entries alternate in one process.
peak MB: how far one step raises the peak memory of a fresh process above the loaded model, without the warm-up.
trainable: parameters that the step adapts. forwards: time divided by the time of a plain forward.
counted: the same by arithmetic alone, whatever the machine. Every image is past the gate of a method that has one."""


@dataclass(frozen=True)
class CostRequest:
    """The options of a measurement, checked.

    Args:
        source: The model.
        methods: Specs, "all", or "paper" for the methods that the paper compares.
        batch_sizes: Images per step; each gives a table.
        classes: Classes, each with a prompt for methods that adapt the text tower.
        streams: Streams that share a batch.
        rounds: Measured steps of each entry; by default as many as fit into ``minutes``, but at least 3.
        minutes: The time to spend on each batch size.
        threads: Threads of torch; by default all cores.
        memory: Also measure peak memory, in fresh processes.
    """

    source: ModelSource
    methods: tuple[str, ...]
    batch_sizes: tuple[int, ...] = (16,)
    classes: int = 1000
    streams: int = 1
    rounds: int | None = None
    minutes: float = 8.0
    threads: int = field(default_factory=count_cores)
    memory: bool = True

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise LmrError("Expected at least one batch size.")
        check_numbers(
            [("batch size", size) for size in self.batch_sizes]
            + [("number of threads", self.threads), ("number of classes", self.classes)]
            + [("number of streams", self.streams), ("number of rounds", 1 if self.rounds is None else self.rounds)]
        )
        if not self.minutes > 0:
            raise LmrError(f"Expected a positive number of minutes, got {self.minutes!r}.")
        specs = tuple(make_absolute(spec) for entry in self.methods for spec in expand_methods(entry))
        if len(set(specs)) < len(specs):
            raise LmrError(f"Name every method once, got {', '.join(specs)}.")
        object.__setattr__(self, "methods", specs)


def check_numbers(named: Sequence[tuple[str, int]]) -> None:
    """Raise LmrError if one of the named values is not a positive whole number."""
    for name, value in named:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise LmrError(f"Expected a {name} of at least 1, got {value!r}.")


def make_absolute(spec: str) -> str:
    """Return the spec of a method in a file with the file's whole path, for a process that starts in another folder."""
    file, rest = split_address(spec)
    return spec if file is None else f"{Path(file).absolute()}:{rest}"


@dataclass(frozen=True)
class Measurement:
    """The measured seconds and bytes of an entry, and its forwards by arithmetic where these are known."""

    name: str
    images: int  # per step
    seconds: tuple[float, ...]  # of every measured step, in the order of the rounds
    peak_bytes: int | None
    trainable: int
    counted: float | None

    @property
    def each_ms(self) -> list[float]:
        """Milliseconds per image of every step."""
        return [1000 * seconds / self.images for seconds in self.seconds]

    @property
    def median_ms(self) -> float:
        """Milliseconds per image."""
        return statistics.median(self.each_ms)


@dataclass(frozen=True)
class CostReport:
    """The rows of every batch size, the plain forward first, with where, when and how they were measured."""

    protocol: dict[str, Any]
    tables: dict[int, list[Measurement]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_text(self) -> str:
        """Return aligned columns, for a terminal."""
        parts = ["\n".join(f"{key.replace('_', ' ')}: {value}" for key, value in self.protocol.items())]
        for size, rows in self.tables.items():
            parts += [f"Batch size {size}", format_table(_list_cells(rows))]
        return "\n\n".join([*parts, *self.notes, LEGEND]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return every number, measured and derived."""
        tables = [
            {
                "batch_size": size,
                "rows": [
                    dataclasses.asdict(row)
                    | {"median_ms": row.median_ms, "forwards": row.median_ms / rows[0].median_ms}
                    for row in rows
                ],
            }
            for size, rows in self.tables.items()
        ]
        return {"protocol": self.protocol, "tables": tables, "notes": self.notes}

    def save(self, folder: Path) -> None:
        """Write both files, each atomically."""
        for name, content in zip(FILES, (self.to_text(), json.dumps(self.to_json(), indent=1) + "\n"), strict=True):
            write_atomically(folder / name, content.encode())


def _list_cells(rows: Sequence[Measurement]) -> list[list[str]]:
    lines = [["entry", "ms/image", "min - max", "peak MB", "trainable", "forwards", "counted"]]
    for row in rows:
        digits = 1 if row.median_ms >= 10 else 3
        median, low, high = (f"{ms:.{digits}f}" for ms in (row.median_ms, min(row.each_ms), max(row.each_ms)))
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}"
        counted = "-" if row.counted is None else f"{row.counted:.2f}"
        forwards = f"{row.median_ms / rows[0].median_ms:.2f}"
        lines.append([row.name, median, f"{low} - {high}", peak, f"{row.trainable:,}", forwards, counted])
    return lines


class MeasuredStep:
    """A step of a method, from the state of a long stream, on images that are all past its gate; or a plain forward."""

    def __init__(self, model: MeasuredModel, spec: str, batch_size: int, classes: int, streams: int) -> None:
        self.name = split_address(spec)[1]
        self._batch = model.draw_images(batch_size)
        self._ids = torch.arange(batch_size) % streams if streams > 1 else None
        text = model.write_prompts(classes) if spec != FORWARD and _adapts_text(spec) else None
        self._clip = model.make_classifier(batch_size, classes, batch_size, text)
        self.method = None if spec == FORWARD else create(spec, self._clip, streams=streams)
        self._turns = 1 if self.method is None else math.ceil(self.method.cycle / batch_size)
        self.images = self._turns * batch_size
        self.trainable, self.counted = 0, 1.0 if self.method is None else None
        if self.method is not None:
            self.trainable = self.method.trainable * streams
            self.counted = count_forwards(self.method, max(1, batch_size // streams))

    def reset(self) -> None:
        """Return to the state of a long stream."""
        if self.method is not None:
            self.method.reset()
            self.method.fill_state(self._batch)

    def answer(self) -> Tensor:
        """Take the step and return the logits of its last batch."""
        if self.method is None:
            with torch.no_grad():
                return self._clip(self._batch)
        return [self.method.step(self._batch, streams=self._ids).logits for _ in range(self._turns)][-1]

    def time(self) -> float:
        """Return the seconds of the step. Recent garbage is collected before, so that no step pays for another's."""
        self.reset()
        gc.collect(1)  # a full collection would empty the processor's caches
        started = time.perf_counter()
        logits = self.answer()
        seconds = time.perf_counter() - started
        if not logits.isfinite().all():
            raise LmrError(f"{self.name} answered with NaN or infinite values; measure another model.")
        return seconds


def _adapts_text(spec: str) -> bool:
    return Tower.TEXT in find_addressed(spec).towers


def measure_cost(request: CostRequest, out: str | os.PathLike[str] | None = None) -> CostReport:
    """Measure time and memory of a step of each method; with ``out``, write the report to that folder.

    Every table is written as soon as it is complete.
    """
    if out is not None:
        check_folder(Path(out), FILES)
    machine = describe_machine()  # before anything runs: the load it reports is that of other programs
    with use_threads(request.threads):
        model = find_measured_model(request.source)
        settings = {"classes": request.classes, "streams": request.streams, "threads": request.threads}
        report = CostReport(
            {"model": model.name, "digest": digest_tensors(model.encoder.state_dict())}
            | settings
            | {"prompts": f"{SHORTEST} to {LONGEST} tokens, random words"}
            | machine
            | {"date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")}
        )
        specs = [FORWARD, *request.methods]
        if model.write_prompts(2) is None:
            specs = [spec for spec in specs if spec == FORWARD or not _adapts_text(spec)]
            if len(specs) <= len(request.methods):
                report.notes.append(
                    "This model has no text tower with gradients, so methods that adapt it are left out."
                )
        for size in request.batch_sizes:
            report.tables[size] = _measure_size(request, model, specs, size, report.notes)
            if out is not None:
                report.save(Path(out))
    return report


def _measure_size(
    request: CostRequest, model: MeasuredModel, specs: Sequence[str], size: int, notes: list[str]
) -> list[Measurement]:
    started = time.perf_counter()
    sizes = (size, request.classes, request.streams)
    steps = [MeasuredStep(model, spec, *sizes) for spec in specs]  # also finds what does not fit, before measuring
    peaks: dict[str, int | None] = {}
    with show_progress("", len(steps) * (1 + request.memory + (request.rounds or FEWEST)), "steps") as bar:
        for step, spec in zip(steps, specs, strict=True) if request.memory else ():
            bar.describe(f"memory: {step.name}")
            what = f"the memory of {step.name}"
            peaks[step.name] = call_fresh(measure_memory, what, request.source, spec, *sizes, request.threads)
            if peaks[step.name] is None:
                notes.append(f"{step.name} did not fit into memory at batch size {size}.")
            bar.advance()
        timed = {step.name: step.time for step in steps}
        warm = time.perf_counter()
        alternate(timed, 1, bar)  # libraries load and memory is allocated
        now = time.perf_counter()
        rounds = request.rounds or choose_rounds(now - warm, 60 * request.minutes - (now - started))
        bar.set_total(bar.done + rounds * len(steps))
        seconds = alternate(timed, rounds, bar)
    return [
        Measurement(
            step.name, step.images, tuple(seconds[step.name]), peaks.get(step.name), step.trainable, step.counted
        )
        for step in steps
    ]


def alternate(
    timed: Mapping[str, Callable[[], float]], rounds: int, bar: ProgressBar, begin: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Return the seconds of every entry. Each round times each once; the first of one round is the last of the next."""
    names = list(timed)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        begin()
        start = turn % len(names)
        for name in [*names[start:], *names[:start]]:
            bar.describe(f"round {turn + 1} of {rounds}: {name}")
            seconds[name].append(timed[name]())
            bar.advance()
    return seconds


def choose_rounds(round_seconds: float, left_seconds: float) -> int:
    """Return the number of rounds that fit into the remaining time, between FEWEST and MOST."""
    return max(FEWEST, min(MOST, math.floor(left_seconds / max(round_seconds, 1e-3))))


def measure_memory(source: ModelSource, spec: str, batch_size: int, classes: int, streams: int, threads: int) -> int:
    """Return the bytes by which one step raises the peak of this process, which should be fresh."""
    torch.set_num_threads(threads)
    model = find_measured_model(source)
    MeasuredStep(model, spec, _FEW_IMAGES, _FEW_CLASSES, 1).time()
    step = MeasuredStep(model, spec, batch_size, classes, streams)
    step.reset()
    if model.tower is not None:
        model.tower.set_memory("fast")  # memory that the warm-up left for the next step would hide a part of this one's
    return measure_peak(step.answer)
