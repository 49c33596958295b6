"""Measure the cost of a step: memory in fresh processes, then time with the entries alternating in one process."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.cost.entries import Entry, EntryKinds, list_entries
from lab.cost.settings import METHODS
from lab.cost.steps import CostStep, StepFactory, StepResult
from lab.cost.table import FILES, CostReport, CostTable, Measurement
from lab.cost.timing import MatrixRate, measure_step_memory, take_turns, warm_up
from lmr.bench.cost.measure import check_numbers, choose_rounds, make_absolute
from lmr.bench.cost.model import LONGEST, SHORTEST, MeasuredModel, ModelSource, find_measured_model
from lmr.bench.machine import count_cores, describe_machine, use_threads
from lmr.core.classifier import digest_tensors
from lmr.core.errors import LmrError
from lmr.core.files import check_folder
from lmr.core.progress import show_progress
from lmr.core.registry import expand_methods
from lmr.models.towers.image import VisionConfig

MOST_AT_ONCE = 64  # images whose products the machine's rate is measured with; more change nothing
MOST_REACHED = 1.05  # of the arithmetic limit; a little above 1, because the machine's rate is measured too


@dataclass(frozen=True)
class CostRequest:
    """The options of a measurement, checked."""

    source: ModelSource
    batch_sizes: tuple[int, ...] = (16,)  # images per step; each gives a table
    methods: tuple[str, ...] = METHODS  # specs, "all", or "paper" for the methods that the paper compares
    rounds: int | None = None  # measured steps of each entry; None: as many as fit into ``minutes``, but at least 3
    minutes: float = 8.0  # the time to spend on each batch size
    threads: int = field(default_factory=count_cores)
    classes: int = 1000  # each with a prompt for methods that adapt the text tower
    streams: int | None = None  # streams of one image each that share a batch; None: the batch size
    memory: bool = True  # also measure peak memory, in fresh processes
    switches: bool = False  # add the switches that do less than a published method
    lean: bool = False  # add the methods in their lean mode
    full_context: bool = False  # add methods that adapt the text tower with uncut prompts in one graph
    plain: bool = True  # add the loops on transformers, which take much memory

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise LmrError("Expected at least one batch size.")
        whole = [("batch size", size) for size in self.batch_sizes]
        whole += [("number of threads", self.threads), ("number of classes", self.classes)]
        given = [("number of rounds", self.rounds), ("number of streams", self.streams)]
        check_numbers(whole + [(name, value) for name, value in given if value is not None])
        if not self.minutes > 0:
            raise LmrError(f"Expected a positive number of minutes, got {self.minutes!r}.")
        specs = tuple(make_absolute(spec) for entry in self.methods for spec in expand_methods(entry))
        object.__setattr__(self, "methods", specs)

    @property
    def command(self) -> str:
        """The command that measures the same again."""
        source = ["--random", self.source.random] if self.source.random else [str(self.source.model)]
        words = [*source, "--batch-size", *map(str, self.batch_sizes), "--methods", *self.methods]
        words += ["--classes", str(self.classes), "--threads", str(self.threads)]
        words += ["--rounds", str(self.rounds)] if self.rounds else ["--minutes", f"{self.minutes:g}"]
        words += ["--streams", str(self.streams)] * (self.streams is not None)
        flags = {"--no-memory": not self.memory, "--switches": self.switches, "--lean": self.lean}
        flags |= {"--full-context": self.full_context, "--no-plain": not self.plain}
        words += [flag for flag, wanted in flags.items() if wanted]
        return f"python -m lab.cost {shlex.join(words)}"


def measure_cost(request: CostRequest, out: str | os.PathLike[str] | None = None) -> CostReport:
    """Measure time, memory and arithmetic of a step of each method: one table per batch size.

    With ``out``, the report is written to that folder as soon as a table is complete. The model is loaded once for all
    timings.
    """
    if out is not None:
        check_folder(Path(out), FILES)
    machine = describe_machine()  # before anything runs: the load it reports is that of other programs
    with use_threads(request.threads):
        model = find_measured_model(request.source)
        protocol = {
            "model": model.name,
            "digest": digest_tensors(model.encoder.state_dict()),
            "classes": request.classes,
            "prompts": f"{SHORTEST} to {LONGEST} tokens, random words",
            **machine,
            "threads": request.threads,
            "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
            "command": request.command,
        }
        report = CostReport(protocol, [])
        for size in request.batch_sizes:
            report.tables.append(_fill_table(request, model, size))
            if out is not None:
                report.save(Path(out))
    return report


def _fill_table(request: CostRequest, model: MeasuredModel, batch_size: int) -> CostTable:
    started = time.perf_counter()
    transformers = not request.plain or importlib.util.find_spec("transformers") is not None
    text = model.write_prompts(2) is not None
    notes = _explain_missing(model, transformers, text)
    kinds = EntryKinds(
        transformers=request.plain and transformers and model.tower is not None and model.tower.is_clip,
        text=text,
        switches=request.switches,
        lean=request.lean and model.tower is not None,
        full_context=request.full_context and model.text is not None,
    )
    entries = list_entries(request.methods, batch_size, request.streams or batch_size, kinds)
    factory = StepFactory(model, batch_size, request.classes)
    steps = [factory.build(entry) for entry in entries]  # also finds what does not fit, before measuring
    peaks: dict[str, int | None] = {}
    with show_progress("", len(entries) * (1 + request.memory + (request.rounds or 3)), "steps") as bar:
        for entry in entries if request.memory else []:
            bar.describe(f"memory: {entry.name}")
            peaks[entry.name] = measure_step_memory(request.source, entry, batch_size, request.classes, request.threads)
            bar.advance()
        warm = time.perf_counter()
        results = warm_up(steps, request.classes, bar)
        tower, matrices = model.tower, None
        if tower is not None:
            # Views of an image are encoded together: larger products, which the machine may multiply faster.
            widest = min(MOST_AT_ONCE, max(result.largest for result in results.values()))
            matrices = MatrixRate(tower.config, max(batch_size, widest), tower.projection.dtype)
            matrices.measure(keep=False)
        notes += _compare_answers(steps, results)
        notes += [note for step in steps for note in _describe_skipped(step, results)]
        notes += [f"{name} did not fit into memory." for name, peak in peaks.items() if peak is None]
        rounds = request.rounds or _plan_rounds(time.perf_counter() - warm, started, request.minutes)
        bar.set_total(bar.done + rounds * len(entries))
        seconds = take_turns(steps, matrices, rounds, bar)
    rate = None if matrices is None else matrices.rate
    rows: list[Measurement] = []
    for step in steps:  # the first is our forward
        name = step.entry.name
        row = Measurement(
            entry=step.entry,
            spec=step.spec,
            batch_size=batch_size,
            classes=request.classes,
            images=step.images,
            seconds=tuple(seconds[name]),
            peak_bytes=peaks.get(name),
            trainable=step.trainable,
            flops=factory.count_flops(step, results[name]),
            gate_share=results[name].gate_share,
            rate=rate,
        )
        rows.append(dataclasses.replace(row, forward_ms=(rows or [row])[0].median_ms))
    aimed = tower is not None and has_aimed_sizes(tower.config)
    return CostTable(batch_size, rows, rate, notes, find_doubts(rows), aimed)


def has_aimed_sizes(config: VisionConfig) -> bool:
    """Return whether the aims were set for a tower of this size; every activation costs the same."""
    return dataclasses.replace(config, activation="quick_gelu", eps=1e-5) == VisionConfig()


def _plan_rounds(round_seconds: float, started: float, minutes: float) -> int:
    rounds = choose_rounds(round_seconds, 60 * minutes - (time.perf_counter() - started))
    more = rounds * round_seconds / 60
    print(f"One round takes about {round_seconds:.0f} s; {rounds} rounds take {more:.1f} minutes.", file=sys.stderr)
    return rounds


def _explain_missing(model: MeasuredModel, transformers: bool, text: bool) -> list[str]:
    """Return notes on entries that are missing."""
    notes = []
    if model.tower is None:
        notes.append("The arithmetic of this model is not known: no limit, no comparison with transformers.")
    elif not model.tower.is_clip:
        notes.append("transformers has no model with this tower, so there is no comparison with it.")
    elif not transformers:
        notes.append("transformers is not installed (pip install transformers), so there is no comparison with it.")
    if not text:
        notes.append("This model has no text tower with gradients, so methods that adapt it are left out.")
    return notes


def _describe_skipped(step: CostStep, results: dict[str, StepResult]) -> list[str]:
    """Return notes on images that a step left out, where it was meant to use all of them."""
    entry, result = step.entry, results[step.entry.name]
    if not entry.learns or entry.gated or result.passes is None:
        return []
    notes = []
    if result.stepped is False:
        notes.append(f"{entry.name} took no step on these images: its row shows a step that learns nothing.")
    if result.passes.backwards < 1:
        share = f"{result.passes.backwards:.0%} of the images take part in the backward of {entry.name}"
        notes.append(f"{share}, and its limit counts these only.")
    return notes


def find_doubts(rows: Sequence[Measurement]) -> list[str]:
    """Return notes on steps that are faster than their own arithmetic can be."""
    return [
        f"{row.entry.name} reached {row.reached:.0%} of the arithmetic limit, which is impossible: a pass was skipped "
        "or the machine was busy while its rate was measured. Measure again with nothing else running."
        for row in rows
        if row.reached is not None and row.reached > MOST_REACHED
    ]


def _compare_answers(steps: Sequence[CostStep], results: dict[str, StepResult]) -> list[str]:
    """Return notes with the largest difference between the logits of entries that should agree."""
    by_key: dict[str, Entry] = {}
    for step in steps:
        by_key.setdefault(step.entry.key, step.entry)
    pairs = [("forward", "transformers"), ("streams", "singles")]
    for key, entry in by_key.items():  # a method as it is by default, and the plain loop of the same name
        if key and entry.kind == "method" and entry.method is not None and entry.spec == entry.method.name:
            pairs.insert(-1, (key, f"plain {entry.method.name}"))
    notes = []
    for pair in pairs:
        if all(key in by_key for key in pair) and by_key[pair[0]].past == by_key[pair[1]].past:
            ours, theirs = (by_key[key].name for key in pair)
            worst = float((results[ours].logits - results[theirs].logits).abs().max())
            notes.append(f"The logits of {ours!r} and {theirs!r} differ by at most {worst:.0e}.")
    return notes
