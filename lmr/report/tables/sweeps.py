"""What LMR does when one of its numbers changes: batch size, width of the protected set, hard negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmr.report.paper.published import expand_spec
from lmr.report.series import Series, Setting, share_seeds
from lmr.report.tables.corruptions import find_common, finish_line, list_runs, make_name
from lmr.report.tables.distinction import note_left_out, tell_apart
from lmr.report.tables.table import Cell, Column, Line, Table, make_cell

DELTA = 0.03  # the paper's


@dataclass(frozen=True)
class Sweep:
    """Series by line and by the value of what changes, and the domains they all have."""

    kind: str
    setting: Setting
    lines: dict[str, dict[float, Series]]
    domains: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Where the numbers are from, for a caption."""
        every = [one for line in self.lines.values() for one in line.values()]
        images = count_images({one.first.images for one in every})
        seeds = ", ".join(map(str, sorted({seed for one in every for seed in one.seeds})))
        domains = ", ".join(self.domains) if len(self.domains) < 4 else f"mean of {len(self.domains)} domains"
        return f"{self.setting.describe()}, {domains}, {images} each, {'seeds' if ',' in seeds else 'seed'} {seeds}"

    def means(self, line: str) -> dict[float, float]:
        """Mean accuracy in % over domains and seeds by value."""
        found = {value: one.average(self.domains) for value, one in sorted(self.lines[line].items())}
        return {value: sum(a.values()) / len(a) for value, a in found.items() if a}


TITLES = {
    "batch-size": ("Accuracy (%) against the batch size", "method"),
    "delta": ("Accuracy (%) against δ, the width of the protected set", "dataset"),
    "negatives": ("Accuracy (%) with positives by gap or the top class alone, against hard negatives", "positives"),
}


def count_images(counts: set[int]) -> str:
    """How many images there are in words, where several runs may differ in it."""
    return f"{min(counts)} images" if len(counts) == 1 else f"{min(counts)} to {max(counts)} images"


def find_sweeps(settings: dict[Setting, list[Series]]) -> list[Sweep]:
    """Every sweep there is in the runs, three kinds for every setting."""
    found = []
    for setting, series in settings.items():
        plain = [s for s in series if not s.is_part]
        for kind in TITLES:
            lines = _by_batch_size(plain) if kind == "batch-size" else _by_argument(plain, kind, setting)
            if lines:
                members = [one for line in lines.values() for one in line.values()]
                common = find_common(members)
                kept, notes = share_seeds(members, common)
                if kind != "batch-size":
                    notes += note_left_out(members, [s for s in series if s.sweep == kind])
                same = dict(zip(map(id, members), kept, strict=True))
                lines = {name: {v: same[id(one)] for v, one in line.items()} for name, line in lines.items()}
                sweep = Sweep(kind, setting, lines, tuple(common), tuple(notes))
                if any(sweep.means(line) for line in lines):
                    found.append(sweep)
    return found


def _by_batch_size(series: Sequence[Series]) -> dict[str, dict[float, Series]]:
    """Label -> batch size -> series, for what was run with more than one batch size."""
    groups: dict[tuple[Any, ...], dict[float, Series]] = {}
    for one in series:
        if one.sweep is None:
            key = (one.first.spec, one.first.images, one.first.emit, *one.ground)
            groups.setdefault(key, {})[one.first.batch_size] = one
    swept = [group for group in groups.values() if len(group) > 1]
    labels = tell_apart(next(iter(group.values())) for group in swept)
    return {one.label: group for one, group in zip(labels, swept, strict=True)}


def _by_argument(series: Sequence[Series], kind: str, setting: Setting) -> dict[str, dict[float, Series]]:
    """Line -> value of the argument -> series; the LMR that is varied stands in its place among them.

    Of several batch sizes, numbers of images and so on the one with most values is taken.
    """
    groups: dict[tuple[Any, ...], list[Series]] = {}
    for one in series:
        if one.sweep == kind or (one.first.method == "lmr" and not one.changes):
            groups.setdefault((one.first.batch_size, one.first.images, one.first.emit, *one.ground), []).append(one)
    varied = [group for group in groups.values() if any(one.sweep == kind for one in group)]
    lines: dict[str, dict[float, Series]] = {}
    for one in max(varied, key=len, default=[]):
        values = expand_spec(one.first.spec)
        line = str(values["positives"]) if kind == "negatives" else setting.dataset
        lines.setdefault(line, {})[float(values[kind])] = one
    return lines if any(len(line) > 1 for line in lines.values()) else {}


def build_sweep_table(sweep: Sweep) -> Table:
    """One line per method (or dataset, or kind of positives), one column per value."""
    values = sorted({value for line in sweep.lines.values() for value in line})
    columns = tuple(Column(f"{value:g}", f"{value:g}") for value in values)
    what, corner = TITLES[sweep.kind]
    lines: list[Line] = []
    for label, members in sweep.lines.items():
        cells = [
            make_cell(members[v].average(sweep.domains), runs=list_runs(members[v], sweep.domains))
            if v in members
            else Cell()
            for v in values
        ]
        every = list(members.values())
        lines.append(finish_line(every[0], cells, label=label, members=every))
    domains = ", ".join(sweep.domains) if len(sweep.domains) < 6 else f"{len(sweep.domains)} domains"
    return Table(
        make_name(f"sweep-{sweep.kind}", sweep.setting),
        f"{what}: {sweep.setting.describe()}",
        columns,
        tuple(lines),
        corner,
        notes=(f"Means over {domains}.", *sweep.notes),
    )
