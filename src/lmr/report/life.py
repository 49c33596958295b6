"""Streams as they are in life: methods against kinds of streams, and how far each falls below the frozen model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lmr.bench.running.metrics import WINDOW, share_below, window_gains, worst_drop
from lmr.bench.running.row import Row
from lmr.data.names import ORDERS
from lmr.report.groups import SHUFFLE, RunGroup, Setting, Settings, split
from lmr.report.runs import Runs
from lmr.report.selection import sort_groups, tell_apart
from lmr.report.table import Cell, Column, Line, Table, TableKind, make_cell
from lmr.report.traits import LineKind, StreamKind

Gains = NDArray[np.float64]
PLAIN_ORDERS = (SHUFFLE, "file")
HAUL = "haul"  # the order of the long haul
ORDER_NAMES = {SHUFFLE: "shuffled", "classes": "by class", "shift": "label shift", HAUL: "long haul"}
STREAMS = tuple(StreamKind)
SUMMARIES = (
    Column("below", "windows below %", 1, False),
    Column("drop", "worst drop", 1, False),
    Column("worst", "worst scenario", 1),
)


@dataclass(frozen=True)
class Scenario:
    """A kind of stream: what the numbers of one column share."""

    dataset: str
    order: str
    stream: StreamKind
    batch_size: int
    images: int
    severity: int  # 0 for clean images

    @property
    def plain(self) -> bool:
        """True if it is as in published benchmarks: no order in the classes, a reset before every corruption."""
        return self.order in PLAIN_ORDERS and not self.stream.several

    @property
    def clean(self) -> Scenario:
        """The same on clean images, which belong to the column of any severity."""
        return replace(self, severity=0)

    @property
    def column(self) -> tuple[Any, ...]:
        """The key of a column: of several datasets and lengths one is shown."""
        return self.order, self.stream, self.batch_size, self.severity

    @property
    def place(self) -> tuple[Any, ...]:
        """A key that sorts columns: hauls last, then by kind of stream, order, severity and batch size."""
        kind = self.order.split()[0]
        place = ORDERS.index(kind) if kind in ORDERS else len(ORDERS)
        kinds = self.order == HAUL, STREAMS.index(self.stream), place, len(self.order), self.order
        return *kinds, -self.severity, -self.batch_size

    def describe(self, severity: bool = False) -> str:
        """Return the head of a column, with its severity where another column differs in nothing else."""
        order = ORDER_NAMES.get(self.order, self.order)
        if self.stream.several:
            order = f"{self.stream.value} {self.order.removeprefix(SHUFFLE).strip()}".strip()
        severities = [f"severity {self.severity}"] if severity and self.severity else []
        return ", ".join([order, *severities, str(self.batch_size)])


def find_scenario(one: RunGroup) -> Scenario:
    """Return the kind of stream that a group of runs is about."""
    row, setting = one.first, one.setting
    return Scenario(setting.dataset, setting.order, setting.stream, row.batch_size, row.images, setting.severity)


def _is_life(one: RunGroup) -> bool:
    return not find_scenario(one).plain


@dataclass(frozen=True)
class World:
    """All groups on one kind of data with one model, at any severity, in any order and batch size."""

    setting: Setting  # without what differs
    groups: tuple[RunGroup, ...]

    @cached_property
    def references(self) -> dict[tuple[Any, ...], Row]:
        """The rows of the frozen model by the stream they are about: its batch size changes nothing."""
        rows = (row for one in self.groups if one.kind is LineKind.BASELINE for row in one.rows)
        return {_identify_stream(row): row for row in rows}

    def find_reference(self, row: Row) -> Row | None:
        """Return the row of the frozen model on the same stream."""
        return self.references.get(_identify_stream(row))

    def measure_gains(self, runs: Runs, row: Row) -> Gains | None:
        """Return accuracy minus the frozen model's in every window of a run, [W]; None without answers of both."""
        reference = self.find_reference(row)
        answers = [runs.samples(one) for one in (row, reference)] if reference else []
        right = [samples["true"] == samples["predicted"] for samples in answers if samples is not None]
        return window_gains(*right) if len(right) == 2 and len(right[0]) == len(right[1]) else None


def _identify_stream(row: Row) -> tuple[Any, ...]:
    return (
        row.backbone.get("weights"), row.backbone.get("dtype"), row.prompts.get("digest"), row.dataset, row.data_digest,
        row.domain, row.severity, row.seed, row.images, *row.order.values(), *row.domains,
    )  # fmt: skip


def find_worlds(settings: Settings, wanted: Callable[[RunGroup], bool] | None = None) -> list[World]:
    """Return the worlds with a wanted group; default: on a stream that is not as in published benchmarks."""
    wanted = wanted or _is_life
    found: dict[Setting, list[RunGroup]] = {}
    for setting, groups in settings.items():
        name = re.sub(r"^(pocket(-c)?)-\d+$", r"\1", setting.dataset)  # any number of images is from one world
        shared = replace(setting, dataset=name, severity=0, order=SHUFFLE, stream=StreamKind.DOMAIN)
        found.setdefault(shared, []).extend(groups)
    worlds = [World(setting, tuple(groups)) for setting, groups in found.items()]
    return [world for world in worlds if any(map(wanted, world.groups))]


def build_life(runs: Runs, settings: Settings) -> list[Table]:
    """Return a table for every model and kind of data that was run on streams as they are in life."""
    return [_build(runs, world) for world in find_worlds(settings)]


def _build(runs: Runs, world: World) -> Table:
    lines = _choose_lines(world)
    scenarios = _choose_scenarios(lines)
    several = len({scenario.severity for scenario in scenarios if scenario.severity}) > 1
    heads = {scenario: scenario.describe(several) for scenario in scenarios}
    shared = [_share_out(members, scenarios) for members in lines]
    domains = {scenario: _share_domains([own[scenario] for own in shared]) for scenario in scenarios}
    made, worst, left = [], [], []
    for first, members, own in zip(tell_apart(members[0] for members in lines), lines, shared, strict=True):
        frames = {heads[scenario]: _list_rows(world, own[scenario], domains[scenario]) for scenario in scenarios}
        shown = [one for one in members if any(one in groups for groups in own.values())]
        line, where = _make_line(runs, world, first, shown, frames)
        made.append(line)
        worst += [f"{line.label} {where}"] if where else []
        left += [f"{line.label} ({text})" for text in _list_others(members, own)]
    notes = [
        "Accuracy in %, the mean over the corruptions of a column. The head of a column ends with the batch size.",
        f"Windows are {WINDOW:,} consecutive images (a shorter stream is one); the worst drop is the largest distance "
        "below the frozen model in any of them, and the worst scenario the lowest accuracy minus that of the frozen "
        "model in any column, both in points.",
        *_describe_columns(domains, heads),
    ]
    notes += [f"On another stream than the others, and not in its column: {', '.join(left)}."] if left else []
    notes += [f"The worst scenarios: {'; '.join(worst)}."] if worst else []
    columns = (*(Column(head, head, 1) for head in heads.values()), *SUMMARIES)
    return world.setting.make_table(TableKind.LIFE, "In life", columns, made, notes=tuple(notes))


def _choose_lines(world: World) -> list[list[RunGroup]]:
    """Return the groups of every configuration that was run on a stream of this kind, in the order of tables."""
    found = split(world.groups, identify_line).values()
    kept = {members[0]: members for members in found if any(map(_is_life, members))}
    return [kept[first] for first in sort_groups(kept)]


def identify_line(one: RunGroup) -> tuple[Any, ...]:
    """Return what the groups of one line share, whatever the stream: method, watch, emission, model and prompts."""
    weights, dtype, _, prompts, _ = one.ground
    return (*one.configuration, one.first.emit, weights, dtype, prompts)


def _choose_scenarios(lines: Sequence[Sequence[RunGroup]]) -> list[Scenario]:
    """Return a column for every order, kind of stream, batch size and severity.

    Of several datasets and numbers of images the one with most lines is shown. Clean images alone make a column where
    nothing else does. Published streams are there to compare with: at the severities of the others only.
    """
    counts = Counter(scenario for members in lines for scenario in {find_scenario(one) for one in members})
    severities = {scenario.severity for scenario in counts if not scenario.plain}
    best: dict[tuple[Any, ...], Scenario] = {}
    for scenario in sorted(counts, key=lambda s: (counts[s], s.images, s.dataset)):
        if scenario.severity in severities:
            best[scenario.column] = scenario
    corrupted = {scenario.clean.column for scenario in best.values() if scenario.severity}
    kept = [one for one in best.values() if one.severity or one.column not in corrupted]
    return sorted(kept, key=lambda scenario: scenario.place)


def _share_out(members: Sequence[RunGroup], scenarios: Sequence[Scenario]) -> dict[Scenario, list[RunGroup]]:
    """Return the groups of a line by column.

    Clean images count with every severity that the line was run at. Where there is one severity only, a line with clean
    images alone is in its column too.
    """
    columns = [scenario.clean.column for scenario in scenarios]
    found = {}
    for scenario in scenarios:
        corrupted = any(find_scenario(one) == scenario for one in members)
        fits = {scenario, scenario.clean} if corrupted or columns.count(scenario.clean.column) == 1 else set()
        found[scenario] = [one for one in members if find_scenario(one) in fits]
    return found


def _list_others(members: Sequence[RunGroup], own: Mapping[Scenario, Sequence[RunGroup]]) -> list[str]:
    """Return the streams of a line on other images than those of their column, where it has no number there."""
    empty = {one.column for scenario, groups in own.items() if not groups for one in (scenario, scenario.clean)}
    shown = {find_scenario(one) for groups in own.values() for one in groups}
    others = {find_scenario(one) for one in members} - shown
    there = sorted((scenario for scenario in others if scenario.column in empty), key=lambda one: one.place)
    return [f"{scenario.describe()}, {scenario.images:,} images" for scenario in there]


def _share_domains(lines: Sequence[Sequence[RunGroup]]) -> list[str]:
    """Return the domains of a column that all its lines have: means over others are not comparable."""
    every = [{row.domain: None for one in members for row in one.rows} for members in lines]
    there = [own for own in every if own]
    return [domain for domain in there[0] if all(domain in own for own in there)]


def _list_rows(world: World, groups: Sequence[RunGroup], domains: Sequence[str]) -> pd.DataFrame:
    """Return the runs of a cell, a line each: accuracy in %, and how far that is above the reference's."""
    rows = {(row.domain, row.seed): row for one in groups for row in one.rows if row.domain in domains}
    lines = []
    for (domain, seed), row in rows.items():
        accuracy, reference = row.metrics["accuracy"] or 0.0, world.find_reference(row)
        above = 100 * (accuracy - (reference.metrics["accuracy"] or 0.0)) if reference else None
        lines.append((domain, seed, row, row.run, reference.run if reference else None, 100 * accuracy, above))
    columns = ["domain", "seed", "row", "run", "reference", "accuracy", "above"]
    return pd.DataFrame(lines, columns=columns).astype({"accuracy": float, "above": float})


def _make_line(
    runs: Runs, world: World, first: RunGroup, members: Sequence[RunGroup], frames: Mapping[str, pd.DataFrame]
) -> tuple[Line, str]:
    """Return a line from its runs by the heads of the columns, and a phrase on where it is worst."""
    cells, windows, gains = [], [], {}
    used: dict[str, list[str]] = {}
    for head, frame in frames.items():
        if frame.empty:
            cells.append(Cell())
            continue
        accuracy, above = (frame.pivot(index="seed", columns="domain", values=key) for key in ("accuracy", "above"))
        cells.append(make_cell(accuracy.dropna().mean(axis=1), frame["run"]))
        if first.kind is LineKind.BASELINE:
            continue
        compared = frame.dropna(subset=["above"])
        measured = {row.run: world.measure_gains(runs, row) for row in compared["row"]}
        windows += [own for own in measured.values() if own is not None]
        if len(by_seed := above.dropna().mean(axis=1)):
            gains[head], used[head] = float(by_seed.mean()), [*compared["run"], *compared["reference"]]
    every = tuple(dict.fromkeys(run for own in used.values() for run in own))
    joined = np.concatenate(windows) if windows else None
    cells.append(Cell() if joined is None else Cell(100 * share_below(joined), runs=every))
    cells.append(Cell() if joined is None else Cell(100 * worst_drop(joined), runs=every))
    where = min(gains, key=lambda head: gains[head]) if gains else ""
    cells.append(Cell(gains[where], runs=tuple(used[where])) if where else Cell())
    return first.make_line(cells, members=members), f"{gains[where]:+.1f} in {where}" if where else ""


def _describe_columns(domains: Mapping[Scenario, Sequence[str]], heads: Mapping[Scenario, str]) -> list[str]:
    """Return the data of the columns, those with the same together."""
    found = split(domains, lambda one: f"{one.images:,} images of {one.dataset}, {', '.join(domains[one])}")
    return [f"{text}: {'; '.join(heads[one] for one in scenarios)}." for text, scenarios in found.items()]
