"""What LMR does when one of its numbers changes: batch size, width of the protected set, hard negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmr.bench.gather import Series, Setting, share_seeds, tell_apart
from lmr.bench.reference import expand_spec
from lmr.bench.table import Cell, Column, Line, Table, make_cell
from lmr.bench.tables import finish_line, list_runs, make_name, order_domains

DELTA = 0.03  # the paper's


@dataclass(frozen=True)
class Sweep:
    """Series by line and by the value of what changes, and the domains they all have."""

    kind: str
    setting: Setting
    lines: dict[str, dict[float, Series]]
    domains: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def means(self, line: str) -> dict[float, float]:
        """Mean accuracy in % over domains and seeds by value."""
        found = {value: one.average(self.domains) for value, one in sorted(self.lines[line].items())}
        return {value: sum(a.values()) / len(a) for value, a in found.items() if a}


TITLES = {
    "batch-size": ("Accuracy (%) against the batch size", "method"),
    "delta": ("Accuracy (%) against δ, the width of the protected set", "dataset"),
    "negatives": ("Accuracy (%) with positives by gap or the top class alone, against hard negatives", "positives"),
}


def find_sweeps(settings: dict[Setting, list[Series]]) -> list[Sweep]:
    """Every sweep there is in the runs, three kinds for every setting."""
    found = []
    for setting, series in settings.items():
        plain = [s for s in series if not s.is_part]
        for kind, lines in (
            ("batch-size", _by_batch_size(plain)),
            ("delta", _by_argument(plain, "delta", setting)),
            ("negatives", _by_argument(plain, "negatives", setting)),
        ):
            if lines:
                members = [one for line in lines.values() for one in line.values()]
                common = [d for d in order_domains(members) if all(d in one.domains for one in members)]
                kept, notes = share_seeds(members, common)
                same = dict(zip(map(id, members), kept, strict=True))
                lines = {name: {v: same[id(one)] for v, one in line.items()} for name, line in lines.items()}
                sweep = Sweep(kind, setting, lines, tuple(common), tuple(notes))
                if any(sweep.means(line) for line in lines):
                    found.append(sweep)
    return found


def _by_batch_size(series: Sequence[Series]) -> dict[str, dict[float, Series]]:
    """Label -> batch size -> series, for what was run with more than one batch size."""
    groups: dict[tuple[str, int], dict[float, Series]] = {}
    for one in series:
        if one.sweep is None:
            groups.setdefault((one.first.spec, one.first.images), {})[one.first.batch_size] = one
    swept = [group for group in groups.values() if len(group) > 1]
    labels = tell_apart(next(iter(group.values())) for group in swept)
    return {one.label: group for one, group in zip(labels, swept, strict=True)}


def _by_argument(series: Sequence[Series], kind: str, setting: Setting) -> dict[str, dict[float, Series]]:
    """Line -> value of the argument -> series; the LMR that is varied stands in its place among them."""
    varied = [s for s in series if s.sweep == kind]
    if not varied:
        return {}
    like = varied[0].first
    base = [s for s in series if s.first.method == "lmr" and not s.changes]
    same = [s for s in [*base, *varied]
            if (s.first.batch_size, s.first.images) == (like.batch_size, like.images)]  # fmt: skip
    lines: dict[str, dict[float, Series]] = {}
    for one in same:
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
        lines.append(finish_line(next(iter(members.values())), cells, label=label))
    domains = ", ".join(sweep.domains) if len(sweep.domains) < 6 else f"{len(sweep.domains)} domains"
    return Table(
        make_name(f"sweep-{sweep.kind}", sweep.setting),
        f"{what}: {sweep.setting.describe()}",
        columns,
        tuple(lines),
        corner,
        notes=(f"Means over {domains}.", *sweep.notes),
    )
