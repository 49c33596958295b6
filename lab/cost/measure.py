"""Measure the cost of a step: memory in fresh processes, then time with the entries alternating in one process."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lab.cost.model import MeasuredModel, ModelSource, find_measured_model
from lab.cost.plain import PlainLoop, list_plain_loops
from lab.cost.vision import build_transformers_vision
from lmr.bench.machine import call_fresh, count_cores, describe_machine, measure_peak, use_threads
from lmr.bench.table import format_table
from lmr.core.card import Tower
from lmr.core.errors import LmrError
from lmr.core.progress import show_progress
from lmr.core.registry import create, expand_methods, find_addressed, split_address
from lmr.models.towers.image import VisionTower

FORWARD, TRANSFORMERS, PLAIN = "forward", "transformers forward", "plain "
METHODS = ("zeroshot", "lmr", "tent", "batclip")
_FEW_IMAGES, _FEW_CLASSES = 2, 12  # in the warm-up before memory is measured

LEGEND = """\
ms/image: the fastest step and the median of all rounds; the entries alternate in one process.
peak MB: how far one step raises the peak memory of a fresh process above the loaded model, without the warm-up.
trainable: parameters that the step adapts. forwards: the fastest step divided by the fastest forward.
Every image is past the gate of a method that has one."""


@dataclass(frozen=True)
class CostRequest:
    """The options of a measurement."""

    source: ModelSource
    methods: tuple[str, ...] = METHODS  # specs, "all", or "paper" for the methods that the paper compares
    batch_size: int = 16
    streams: int = 1  # that share a batch
    classes: int = 1000  # each with a prompt for methods that adapt the text tower
    rounds: int = 3
    threads: int = field(default_factory=count_cores)
    memory: bool = True  # also measure peak memory, in fresh processes
    plain: bool = True  # add the loops on transformers, which take much memory
    cpu_time: bool = False  # measure processor time, on a busy machine with one thread

    def __post_init__(self) -> None:
        numbers = {key: value for key, value in vars(self).items() if type(value) is int}
        for name, value in numbers.items():
            if value < 1:
                raise LmrError(f"Expected {name!r} of at least 1, got {value}.")
        specs = tuple(_make_absolute(spec) for entry in self.methods for spec in expand_methods(entry))
        if len(set(specs)) < len(specs):
            raise LmrError(f"Name every method once, got {', '.join(specs)}.")
        object.__setattr__(self, "methods", specs)


@dataclass(frozen=True)
class CostStep:
    """One way to take a step. ``run`` is measured and returns logits; ``reset`` restores the state before it."""

    images: int
    trainable: int
    run: Callable[[], Tensor]
    reset: Callable[[], None] = lambda: None

    def time(self, cpu_time: bool = False) -> float:
        """Return the seconds of the step. Recent garbage is collected before, so that no step pays for another's."""
        clock = time.process_time if cpu_time else time.perf_counter
        self.reset()
        gc.collect(1)  # a full collection would empty the processor's caches
        started = clock()
        logits = self.run()
        seconds = clock() - started
        if not logits.isfinite().all():
            raise LmrError("A step answered with NaN or infinite values; measure another model.")
        return seconds


def list_entries(model: MeasuredModel, request: CostRequest) -> list[str]:
    """Return the entries of the table: the forward, the methods that this model can run, and the plain loops."""
    prompts = model.write_prompts(2) is not None
    entries = [FORWARD, *(spec for spec in request.methods if prompts or not _adapts_text(spec))]
    plain = request.plain and request.source.dtype == "float32"
    if plain and isinstance(model.encoder, VisionTower) and model.encoder.is_clip:
        entries += [TRANSFORMERS, *(PLAIN + name for name in list_plain_loops())]
    return entries


def build_step(model: MeasuredModel, entry: str, batch_size: int, streams: int, classes: int) -> CostStep:
    """Return the step of an entry on the images and classes of a model."""
    images = model.draw_images(batch_size)
    if entry == FORWARD:
        clip = model.make_classifier(batch_size, classes)
        return CostStep(batch_size, 0, torch.no_grad()(lambda: clip(images)))
    if entry == TRANSFORMERS or entry.startswith(PLAIN):
        clip = model.make_classifier(batch_size, classes)
        kind = list_plain_loops().get(entry.removeprefix(PLAIN), PlainLoop)
        assert isinstance(model.encoder, VisionTower)
        loop = kind(build_transformers_vision(model.encoder), clip.prototypes, clip.logit_scale)
        trainable = 0 if entry == TRANSFORMERS else sum(parameter.numel() for parameter in loop.parameters)
        return CostStep(batch_size, trainable, lambda: loop.step(images)[0], loop.reset)
    text = model.write_prompts(classes) if _adapts_text(entry) else None
    method = create(entry, model.make_classifier(batch_size, classes, text), streams=streams)
    ids = torch.arange(batch_size) % streams if streams > 1 else None
    turns = math.ceil(method.cycle / batch_size)

    def reset() -> None:
        method.reset()
        method.fill_state(images)

    def run() -> Tensor:
        return [method.step(images, streams=ids).logits for _ in range(turns)][-1]

    return CostStep(turns * batch_size, method.trainable * streams, run, reset)


def measure_cost(request: CostRequest) -> str:
    """Measure time and memory of a step of every entry, and return them as a table."""
    machine = describe_machine()  # before anything runs: the load it reports is that of other programs
    sizes = request.batch_size, request.streams, request.classes
    with use_threads(request.threads):
        model = find_measured_model(request.source)
        steps = {entry: build_step(model, entry, *sizes) for entry in list_entries(model, request)}
        peaks: dict[str, int | None] = {}
        with show_progress("", len(steps) * (1 + request.memory + request.rounds), "steps") as bar:
            for entry in steps if request.memory else ():
                bar.describe(f"memory: {entry}")
                what = f"the memory of {entry}"
                peaks[entry] = call_fresh(measure_memory, what, request.source, entry, *sizes, request.threads)
                bar.advance()
            seconds: dict[str, list[float]] = {entry: [] for entry in steps}
            for number in range(request.rounds + 1):
                for entry, step in steps.items():
                    bar.describe(f"round {number} of {request.rounds}: {entry}")
                    seconds[entry].append(step.time(request.cpu_time))
                    bar.advance()
    lines = [["entry", "ms/image", "median", "peak MB", "trainable", "forwards"]]
    for entry, step in steps.items():
        each = sorted(1000 * value / step.images for value in seconds[entry][1:])  # the first round warms up
        peak = "-" if (measured := peaks.get(entry)) is None else f"{measured / 1e6:.0f}"
        forwards = each[0] * steps[FORWARD].images / (1000 * min(seconds[FORWARD][1:]))
        numbers = [f"{each[0]:.3f}", f"{each[len(each) // 2]:.3f}", peak, f"{step.trainable:,}", f"{forwards:.2f}"]
        lines.append([split_address(entry)[1] if entry in request.methods else entry, *numbers])
    facts = {"model": model.name, "batch size": sizes[0], "streams": sizes[1], "classes": sizes[2]}
    return "\n\n".join([describe_protocol(facts, request, machine), format_table(lines), LEGEND])


def describe_protocol(facts: Mapping[str, object], request: CostRequest, machine: Mapping[str, object]) -> str:
    """Return what the numbers of a table depend on, a line each."""
    clock = "processor time" if request.cpu_time else "wall"
    found = {**facts, "threads": request.threads, "clock": clock, **machine}
    return "\n".join(f"{key}: {value}" for key, value in found.items())


def measure_memory(source: ModelSource, entry: str, batch_size: int, streams: int, classes: int, threads: int) -> int:
    """Return the bytes by which one step raises the peak of this process, which should be fresh."""
    torch.set_num_threads(threads)
    model = find_measured_model(source)
    build_step(model, entry, _FEW_IMAGES, 1, _FEW_CLASSES).time()
    step = build_step(model, entry, batch_size, streams, classes)
    step.reset()
    return measure_peak(step.run)


def _adapts_text(spec: str) -> bool:
    return Tower.TEXT in find_addressed(spec).towers


def _make_absolute(spec: str) -> str:
    """Return the spec of a method in a file with the file's whole path, for a process in another folder."""
    file, rest = split_address(spec)
    return spec if file is None else f"{Path(file).absolute()}:{rest}"
