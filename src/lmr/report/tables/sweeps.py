"""What methods do when one of their arguments, or the batch size, changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmr.core.card import Role
from lmr.report.paper.panels import SWEEPS
from lmr.report.row_traits import LineKind, expand_spec, find_known, label_of, role_of
from lmr.report.series import Series, Setting, find_common, share_seeds
from lmr.report.tables.distinction import note_left_out, tell_apart
from lmr.report.tables.lines import finish_line, list_runs
from lmr.report.tables.table import Cell, Column, Line, ReportTable, TableKind, make_cell, name_table


@dataclass(frozen=True)
class SweepAxis:
    """What changes in a sweep: the first argument along a line; further ones separate the lines."""

    name: str
    method: str = ""  # none: the batch size of all methods
    arguments: tuple[str, ...] = ()


BATCH_SIZE = SweepAxis("batch-size")
FEWEST_SIZES = 3  # batch sizes that make a line; two compare a published size with another one


@dataclass(frozen=True)
class SweepLine:
    """The series of one line by the value of what changes."""

    kind: LineKind
    members: dict[float, Series]


@dataclass(frozen=True)
class Sweep:
    """The lines of a sweep by their labels, and the domains that all of their series have."""

    axis: SweepAxis
    setting: Setting
    lines: dict[str, SweepLine]
    domains: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def series(self) -> list[Series]:
        """All series in it."""
        return [one for line in self.lines.values() for one in line.members.values()]

    @property
    def longest(self) -> int:
        """How many values the longest line has."""
        return max(len(line.members) for line in self.lines.values())

    @property
    def ours(self) -> bool:
        """Whether the arguments of our method are swept."""
        return self.axis != BATCH_SIZE and role_of(self.series[0].first) is Role.OURS

    def describe(self) -> str:
        """Where the numbers are from, for a caption."""
        images = count_images({one.first.images for one in self.series})
        seeds = ", ".join(map(str, sorted({seed for one in self.series for seed in one.seeds})))
        domains = ", ".join(self.domains) if len(self.domains) < 4 else f"mean of {len(self.domains)} domains"
        return f"{self.setting.describe()}, {domains}, {images} each, {'seeds' if ',' in seeds else 'seed'} {seeds}"

    def means(self, line: str) -> dict[float, float]:
        """Mean accuracy in % over domains and seeds by value."""
        found = {value: one.average(self.domains) for value, one in sorted(self.lines[line].members.items())}
        return {value: sum(a.values()) / len(a) for value, a in found.items() if a}


def count_images(counts: set[int]) -> str:
    """The number of images in words, where runs may differ in it."""
    return f"{min(counts)} images" if len(counts) == 1 else f"{min(counts)} to {max(counts)} images"


def find_sweeps(settings: dict[Setting, list[Series]]) -> list[Sweep]:
    """Every sweep that the runs contain: over the batch size, and over the arguments that methods declare."""
    found = []
    for setting, series in settings.items():
        whole = [s for s in series if s.kind is not LineKind.PART]
        for axis in _list_axes(whole):
            lines = _sweep_batch_size(whole) if axis == BATCH_SIZE else _sweep_argument(whole, axis)
            if lines:
                sweep = _align(Sweep(axis, setting, lines, ()), series)
                if any(sweep.means(line) for line in sweep.lines):
                    found.append(sweep)
    return found


def _list_axes(series: Sequence[Series]) -> list[SweepAxis]:
    axes = {BATCH_SIZE: None}
    for name in dict.fromkeys(one.first.method for one in series):
        method = find_known(name)
        for sweep, arguments in (method.card.swept if method else {}).items():
            axes[SweepAxis(sweep, name, arguments)] = None
    return list(axes)


def _align(sweep: Sweep, series: Sequence[Series]) -> Sweep:
    """The sweep on the seeds and domains that all of its series have."""
    members = sweep.series
    common = find_common(members)
    shared = share_seeds(members, common)
    steps = [s for s in series if s.sweep == sweep.axis.name and s.first.method == sweep.axis.method]
    notes = (*shared.notes, *note_left_out(members, steps))
    same = dict(zip(map(id, members), shared.value, strict=True))
    lines = {
        label: replace(line, members={v: same[id(one)] for v, one in line.members.items()})
        for label, line in sweep.lines.items()
    }
    return Sweep(sweep.axis, sweep.setting, lines, tuple(common), notes)


def _sweep_batch_size(series: Sequence[Series]) -> dict[str, SweepLine]:
    """A line for everything that was run with more than one batch size; two are too few where others have more."""
    groups: dict[tuple[Any, ...], dict[float, Series]] = {}
    for one in series:
        if one.kind is not LineKind.STEP:
            key = (*one.configuration, one.first.images, one.first.emit, *one.ground)
            groups.setdefault(key, {})[one.first.batch_size] = one
    most = max(map(len, groups.values()), default=0)
    swept = [group for group in groups.values() if len(group) >= min(most, FEWEST_SIZES) and len(group) > 1]
    labels = tell_apart(next(iter(group.values())) for group in swept)
    return {one.label: SweepLine(one.kind, group) for one, group in zip(labels, swept, strict=True)}


def _sweep_argument(series: Sequence[Series], axis: SweepAxis) -> dict[str, SweepLine]:
    """A line for each value of the further arguments, or one for the dataset; the unchanged method is one step.

    Of several batch sizes, numbers of images and so on the one with most values is taken.
    """
    groups: dict[tuple[Any, ...], list[Series]] = {}
    for one in series:
        if one.first.method == axis.method and (one.sweep == axis.name or not one.changes):
            key = (one.watch, one.first.batch_size, one.first.images, one.first.emit, *one.ground)
            groups.setdefault(key, []).append(one)
    varied = [group for group in groups.values() if any(one.sweep == axis.name for one in group)]
    swept, *others = axis.arguments
    lines: dict[str, SweepLine] = {}
    for one in max(varied, key=len, default=[]):
        values = expand_spec(one.first.spec)
        if isinstance(values[swept], bool) or not isinstance(values[swept], int | float):
            return {}  # nothing that has an axis
        label = ", ".join(str(values[key]) for key in others) or one.setting.dataset
        own = role_of(one.first) is Role.OURS and not set(one.changes) & set(others)
        line = lines.setdefault(label, SweepLine(LineKind.OURS if own else LineKind.OTHER, {}))
        line.members[float(values[swept])] = one
    return lines if any(len(line.members) > 1 for line in lines.values()) else {}


def build_sweep_table(sweep: Sweep) -> ReportTable:
    """One line per method (or dataset, or value of a further argument), one column per value."""
    values = sorted({value for line in sweep.lines.values() for value in line.members})
    columns = tuple(Column(f"{value:g}", f"{value:g}") for value in values)
    lines: list[Line] = []
    for label, swept in sweep.lines.items():
        members = swept.members
        cells = [
            make_cell(members[v].average(sweep.domains), runs=list_runs(members[v], sweep.domains))
            if v in members
            else Cell()
            for v in values
        ]
        every = list(members.values())
        lines.append(replace(finish_line(every[0], cells, label=label, members=every), kind=swept.kind))
    domains = ", ".join(sweep.domains) if len(sweep.domains) < 6 else f"{len(sweep.domains)} domains"
    return ReportTable(
        TableKind.SWEEP,
        name_table(TableKind.SWEEP, sweep.setting, sweep.axis.name),
        f"{_describe_axis(sweep)}: {sweep.setting.describe()}",
        columns,
        tuple(lines),
        _name_corner(sweep.axis),
        notes=(f"Means over {domains}.", *sweep.notes),
    )


def _describe_axis(sweep: Sweep) -> str:
    if sweep.axis == BATCH_SIZE:
        return "Accuracy (%) against the batch size"
    what = SWEEPS[sweep.axis.name].title if sweep.ours and sweep.axis.name in SWEEPS else ""
    return f"{label_of(sweep.series[0].first)}, {what or f'accuracy (%) against {sweep.axis.arguments[0]}'}"


def _name_corner(axis: SweepAxis) -> str:
    if axis == BATCH_SIZE:
        return "method"
    return ", ".join(axis.arguments[1:]) or "dataset"
