"""The measurement of steps: seconds in alternation in one process, and the peak memory of each in a fresh process."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from lab.cost.entries import Entry
from lab.cost.steps import CostStep, StepFactory, StepResult
from lmr.bench.cost.measure import alternate
from lmr.bench.cost.model import ModelSource, find_measured_model
from lmr.bench.machine import call_fresh, measure_peak
from lmr.core.errors import LmrError
from lmr.core.passes import PassCounter, Passes
from lmr.core.progress import ProgressBar
from lmr.models.towers.image import VisionConfig

_PART = 4  # images in a part that stays in the processor's cache; a whole batch may not
_LEAST_SECONDS = 0.02  # of products of one size in a round
_FEW_IMAGES, _FEW_CLASSES = 2, 12  # in the warm-up; of two images one passes a gate that half of them pass


class MatrixRate:
    """The rate at which this machine multiplies matrices of a tower's shapes; the arithmetic limit is based on it.

    It multiplies the four linear layers of one block on a batch, as bare products into preallocated memory.
    """

    def __init__(self, config: VisionConfig, batch_size: int, dtype: torch.dtype = torch.float32) -> None:
        width, hidden = config.width, config.hidden
        tokens = (config.resolution // config.patch) ** 2 + 1
        self.flops = 2 * batch_size * tokens * (4 * width * width + 2 * width * hidden)
        generator = torch.Generator().manual_seed(4)
        self._layers: list[tuple[Tensor, Tensor, Tensor]] = []  # input, weight, output
        for inner, outer in ((width, 3 * width), (width, width), (width, hidden), (hidden, width)):
            x, weight = (torch.randn(n, inner, generator=generator, dtype=dtype) for n in (batch_size * tokens, outer))
            self._layers.append((x, weight.T, torch.empty(batch_size * tokens, outer, dtype=dtype)))
        self._sizes = sorted({min(_PART, batch_size) * tokens, batch_size * tokens})
        self.seconds: dict[int, list[float]] = {rows: [] for rows in self._sizes}

    def measure(self, *, keep: bool = True) -> None:
        """Multiply everything, part by part and as a whole; ``keep=False`` warms up.

        Products that take less than a time slice of the system are repeated and the fastest is kept: one interruption
        would make the machine look slower than it is, and the steps faster than its arithmetic.
        """
        for rows in self._sizes:
            started, taken = time.perf_counter(), [self._multiply(rows)]
            while time.perf_counter() - started < _LEAST_SECONDS:
                taken.append(self._multiply(rows))
            if keep:
                self.seconds[rows].append(min(taken))

    def _multiply(self, rows: int) -> float:
        """Return the seconds of all products in parts of this number of rows."""
        started = time.perf_counter()
        for x, weight, out in self._layers:
            for first in range(0, len(x), rows):
                torch.mm(x[first : first + rows], weight, out=out[first : first + rows])
        return time.perf_counter() - started

    @property
    def rate(self) -> float:
        """Operations per second: the best size of part by its median over the rounds."""
        return self.flops / min(statistics.median(times) for times in self.seconds.values())


def warm_up(steps: Sequence[CostStep], classes: int, bar: ProgressBar) -> dict[str, StepResult]:
    """Run each step once, not measured, so that libraries load and memory is allocated; return the results."""
    results = {}
    for step in steps:
        bar.describe(f"warm-up: {step.entry.name}")
        results[step.entry.name] = _count_step(step, classes)
        bar.advance()
    return results


def take_turns(
    steps: Sequence[CostStep], matrices: MatrixRate | None, rounds: int, bar: ProgressBar
) -> dict[str, list[float]]:
    """Return the seconds of every step; every round begins with the rate of the machine."""
    timed = {step.entry.name: lambda step=step: _take_step(step)[0] for step in steps}
    return alternate(timed, rounds, bar, (lambda: None) if matrices is None else matrices.measure)


def _count_step(step: CostStep, classes: int) -> StepResult:
    """Take a step and count the passes of its images and prompts."""
    if step.towers is None:
        return _take_step(step)[1]
    images, prompts = PassCounter(), PassCounter()
    with images.observe(step.towers[0]), nullcontext() if step.towers[1] is None else prompts.observe(step.towers[1]):
        result = _take_step(step)[1]
    passes = Passes(
        images.forwards / step.images,
        images.backwards / step.images,
        prompts.forwards / classes,
        prompts.backwards / classes,
    )
    return dataclasses.replace(result, passes=passes, largest=images.largest)


def _take_step(step: CostStep) -> tuple[float, StepResult]:
    """Return the seconds and the checked result of one step from its initial state.

    Recent garbage is collected before, so that no step pays for another's; a full collection would empty the
    processor's caches.
    """
    step.reset()
    gc.collect(1)
    started = time.perf_counter()
    result = step.run()
    seconds = time.perf_counter() - started
    step.check(result)
    if not result.logits.isfinite().all():
        raise LmrError(f"{step.entry.name} answered with NaN or infinite values; measure another model.")
    return seconds, result


def measure_step_memory(source: ModelSource, entry: Entry, batch_size: int, classes: int, threads: int) -> int | None:
    """Return the bytes by which one step raises the peak of a fresh process; None if the system killed it."""
    plain = dataclasses.replace(entry)  # without the class of its method, which may be of a file that is not a module
    return call_fresh(measure_here, f"the memory of {entry.name}", source, plain, batch_size, classes, threads)


def measure_here(source: ModelSource, entry: Entry, batch_size: int, classes: int, threads: int) -> int:
    """Measure the same in this process, which should be fresh: load, warm up on few images and classes, measure."""
    torch.set_num_threads(threads)
    model = find_measured_model(source)
    StepFactory(model, _FEW_IMAGES, _FEW_CLASSES).build(dataclasses.replace(entry, streams=1)).run()
    step = StepFactory(model, batch_size, classes).build(entry)
    step.reset()
    if model.tower is not None:
        model.tower.set_memory("fast")  # memory that the warm-up left for the next step would hide a part of this one's
    return measure_peak(step.run)
