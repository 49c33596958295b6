"""Sweeps: the accuracy of methods against one of their arguments, or against the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmr.core.card import Role
from lmr.report.groups import RunGroup, Setting, Settings, find_common, name_seeds, share_seeds, split
from lmr.report.published import read_paper
from lmr.report.selection import note_left_out, tell_apart
from lmr.report.table import Cell, Column, Table, TableKind
from lmr.report.traits import LineKind, expand_spec, find_card, label_of, role_of

FEWEST_SIZES = 3  # batch sizes that make a line; two only compare a published size with another one


@dataclass(frozen=True)
class SweepAxis:
    """The arguments that change in a sweep: the first along a line; further ones separate the lines."""

    name: str
    method: str = ""  # empty: the batch size of all methods
    arguments: tuple[str, ...] = ()


BATCH_SIZE = SweepAxis("batch-size")


@dataclass(frozen=True)
class SweepLine:
    """The groups of one line, by the value of what changes."""

    kind: LineKind
    members: dict[float, RunGroup]


@dataclass(frozen=True)
class Sweep:
    """The lines of a sweep by their labels, and the domains that all of their groups have."""

    axis: SweepAxis
    setting: Setting
    lines: dict[str, SweepLine]
    domains: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[RunGroup]:
        """All groups in it."""
        return [one for line in self.lines.values() for one in line.members.values()]

    @property
    def figure(self) -> dict[str, Any] | None:
        """The paper's figure of this sweep, with its number; None for other methods and too few batch sizes."""
        if self.axis == BATCH_SIZE:
            drawn = max(len(line.members) for line in self.lines.values()) >= FEWEST_SIZES
        else:
            drawn = role_of(self.groups[0].first) is Role.OURS
        figures = read_paper()["figures"].items() if drawn else ()
        return next(({"number": n, **figure} for n, figure in figures if figure.get("sweep") == self.axis.name), None)

    def describe(self) -> str:
        """Return where the numbers are from, for a caption."""
        images = count_images({one.first.images for one in self.groups})
        seeds = name_seeds(seed for one in self.groups for seed in one.seeds)
        domains = ", ".join(self.domains) if len(self.domains) < 4 else f"mean of {len(self.domains)} domains"
        return f"{self.setting.describe()}, {domains}, {images} each, {seeds}"

    def means(self, line: str) -> dict[float, float]:
        """Return the mean accuracy in % over domains and seeds, by value."""
        found = {value: one.average(self.domains) for value, one in sorted(self.lines[line].members.items())}
        return {value: float(by_seed.mean()) for value, by_seed in found.items() if len(by_seed)}


def count_images(counts: set[int]) -> str:
    """Return the number of images as a phrase, where runs may differ in it."""
    return f"{min(counts)} images" if len(counts) == 1 else f"{min(counts)} to {max(counts)} images"


def find_sweeps(settings: Settings) -> list[Sweep]:
    """Return every sweep in the runs: over the batch size, and over the arguments that methods declare."""
    found = []
    for setting, groups in settings.items():
        whole = [one for one in groups if one.kind is not LineKind.PART]
        methods = dict.fromkeys(one.first.method for one in whole)
        axes = [SweepAxis(sweep, name, keys) for name in methods for sweep, keys in find_card(name).swept.items()]
        for axis in [BATCH_SIZE, *axes]:
            lines = _sweep_batch_size(whole) if axis == BATCH_SIZE else _sweep_argument(whole, axis)
            if lines:
                sweep = _align(Sweep(axis, setting, lines), groups)
                if any(sweep.means(line) for line in sweep.lines):
                    found.append(sweep)
    return found


def _align(sweep: Sweep, groups: Sequence[RunGroup]) -> Sweep:
    """Return the sweep on the seeds and domains that all of its groups have."""
    members = sweep.groups
    common = find_common(members)
    shared, dropped = share_seeds(members, common)
    steps = [one for one in groups if one.sweep == sweep.axis.name and one.first.method == sweep.axis.method]
    same = dict(zip(members, shared, strict=True))
    lines = {
        label: replace(line, members={value: same[one] for value, one in line.members.items()})
        for label, line in sweep.lines.items()
    }
    notes = (*dropped, *note_left_out(members, steps))
    return Sweep(sweep.axis, sweep.setting, lines, tuple(common), notes)


def _sweep_batch_size(groups: Sequence[RunGroup]) -> dict[str, SweepLine]:
    """Return a line for everything that was run with more than one batch size; two are too few beside more."""
    own = [one for one in groups if one.kind is not LineKind.STEP]
    alike = split(own, lambda one: (*one.configuration, one.first.images, one.first.emit, *one.ground)).values()
    found: list[dict[float, RunGroup]] = [{one.first.batch_size: one for one in members} for members in alike]
    most = max(map(len, found), default=0)
    swept = [members for members in found if len(members) >= min(most, FEWEST_SIZES) and len(members) > 1]
    labels = tell_apart(next(iter(members.values())) for members in swept)
    return {one.label: SweepLine(one.kind, members) for one, members in zip(labels, swept, strict=True)}


def _sweep_argument(groups: Sequence[RunGroup], axis: SweepAxis) -> dict[str, SweepLine]:
    """Return a line for each value of the further arguments, or one; the unchanged method is one step.

    Of several batch sizes, numbers of images and so on the one with most values is taken.
    """
    own = [g for g in groups if g.first.method == axis.method and (g.sweep == axis.name or not g.changes)]
    found = split(own, lambda g: (g.watch, g.first.batch_size, g.first.images, g.first.emit, *g.ground))
    varied = [members for members in found.values() if any(one.sweep == axis.name for one in members)]
    swept, *others = axis.arguments
    lines: dict[str, SweepLine] = {}
    for one in max(varied, key=len, default=[]):
        values = expand_spec(one.first.spec)
        if isinstance(values[swept], bool) or not isinstance(values[swept], int | float):
            return {}  # it has no axis
        label = ", ".join(str(values[key]) for key in others) or one.setting.dataset
        ours = role_of(one.first) is Role.OURS and not set(one.changes) & set(others)
        line = lines.setdefault(label, SweepLine(LineKind.OURS if ours else LineKind.OTHER, {}))
        line.members[float(values[swept])] = one
    return lines if any(len(line.members) > 1 for line in lines.values()) else {}


def build_sweep_table(sweep: Sweep) -> Table:
    """Return a table with a line per method (or dataset, or value of a further argument) and a column per value."""
    values = sorted({value for line in sweep.lines.values() for value in line.members})
    lines = []
    for label, swept in sweep.lines.items():
        members = swept.members
        cells = [members[value].cell(sweep.domains) if value in members else Cell() for value in values]
        every = list(members.values())
        lines.append(replace(every[0].make_line(cells, label=label, members=every), kind=swept.kind))
    domains = ", ".join(sweep.domains) if len(sweep.domains) < 6 else f"{len(sweep.domains)} domains"
    axis, title = sweep.axis, "Accuracy (%) against the batch size"
    if axis != BATCH_SIZE:
        what = (sweep.figure or {}).get("title", f"accuracy (%) against {axis.arguments[0]}")
        title = f"{label_of(sweep.groups[0].first)}, {what}"
    more: dict[str, Any] = {
        "detail": axis.name,
        "corner": "method" if axis == BATCH_SIZE else ", ".join(axis.arguments[1:]) or "dataset",
        "notes": (f"Means over {domains}.", *sweep.notes),
    }
    columns = (Column(f"{value:g}", f"{value:g}") for value in values)
    return sweep.setting.make_table(TableKind.SWEEP, title, columns, lines, **more)
