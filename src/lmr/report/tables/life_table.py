"""The table "in life": methods against kinds of streams, and how far each falls below the frozen model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmr.bench.running.metrics import WINDOW, share_below, worst_drop
from lmr.bench.running.row import Row
from lmr.data.names import ORDERS
from lmr.report.in_life import HAUL, LifeGroup, Scenario, find_groups, find_scenario, measure_gains
from lmr.report.noted import Noted, join_notes
from lmr.report.row_traits import LineKind, StreamKind
from lmr.report.runs import Runs
from lmr.report.series import Series, Setting
from lmr.report.tables.distinction import tell_apart
from lmr.report.tables.lines import finish_line
from lmr.report.tables.selection import sort_series
from lmr.report.tables.table import Cell, Column, Line, ReportTable, TableKind, make_cell, name_table

STREAMS = tuple(StreamKind)
Rows = dict[tuple[str, int], Row]  # by domain and seed
BELOW = Column("below", "windows below %", 1, False)
DROP = Column("drop", "worst drop", 1, False)
WORST = Column("worst", "worst scenario", 1)


def build_life(runs: Runs, settings: Mapping[Setting, Sequence[Series]]) -> Noted[list[ReportTable]]:
    """A table for every model and kind of data that was run on such streams."""
    made = [_build(runs, group) for group in find_groups(settings)]
    return Noted([one.value for one in made], join_notes(*(one.notes for one in made)))


def _build(runs: Runs, group: LifeGroup) -> Noted[ReportTable]:
    lines = _choose_lines(group)
    scenarios = _choose_scenarios(lines)
    heads = _name_columns(scenarios)
    shared = [_share_out(members, scenarios) for members in lines]
    domains = {scenario: _share_domains([own[scenario] for own in shared]) for scenario in scenarios}
    made, notes, worst, left = [], [], [], []
    for first, members, own in zip(tell_apart(members[0] for members in lines), lines, shared, strict=True):
        found = {scenario: _list_rows(own[scenario], domains[scenario]) for scenario in scenarios}
        shown = [one for one in members if any(one in series for series in own.values())]
        line, said, where = _make_line(runs, group, first, shown, {heads[key]: rows for key, rows in found.items()})
        made.append(line)
        notes.append(said)
        worst += [f"{line.label} {where}"] if where else []
        left += [f"{line.label} ({words})" for words in _list_others(members, own)]
    columns = [Column(head, head, 1) for head in heads.values()]
    about = [
        "Accuracy in %, the mean over the corruptions of a column. The head of a column ends with the batch size.",
        f"Windows are {WINDOW:,} consecutive images (a shorter stream is one); the worst drop is the largest distance "
        "below the frozen model in any of them, and the worst scenario the lowest accuracy minus that of the frozen "
        "model in any column, both in points.",
        *_describe_columns(domains, heads),
    ]
    about += [f"On another stream than the others, and not in its column: {', '.join(left)}."] if left else []
    about += [f"The worst scenarios: {'; '.join(worst)}."] if worst else []
    table = ReportTable(
        TableKind.LIFE,
        name_table(TableKind.LIFE, group.setting),
        f"In life: {group.setting.describe()}",
        (*columns, BELOW, DROP, WORST),
        tuple(made),
        notes=tuple(about),
    )
    return Noted(table, join_notes(*notes))


def _choose_lines(group: LifeGroup) -> list[list[Series]]:
    """The series of every configuration that was run on a stream of this kind, in the order of tables."""
    found: dict[tuple[Any, ...], list[Series]] = {}
    for one in group.series:
        weights, dtype, _, prompts, _ = one.ground
        found.setdefault((*one.configuration, one.first.emit, weights, dtype, prompts), []).append(one)
    kept = [members for members in found.values() if any(not find_scenario(one).plain for one in members)]
    first = {members[0].first.run: members for members in kept}
    return [first[one.first.run] for one in sort_series([members[0] for members in kept])]


def _choose_scenarios(lines: Sequence[Sequence[Series]]) -> list[Scenario]:
    """One column for every order, kind of stream, batch size and severity.

    Of several datasets and numbers of images the one with most lines is shown. Clean images alone make a column where
    nothing else does. Published streams are there to compare with: at the severities of the others only.
    """
    counts: dict[Scenario, int] = {}
    for members in lines:
        for scenario in {find_scenario(one) for one in members}:
            counts[scenario] = counts.get(scenario, 0) + 1
    severities = {scenario.severity for scenario in counts if not scenario.plain}
    best: dict[tuple[Any, ...], Scenario] = {}
    for scenario in sorted(counts, key=lambda s: (counts[s], s.images, s.dataset)):
        if scenario.severity in severities:
            best[_identify(scenario)] = scenario
    corrupted = {_identify(scenario.clean) for scenario in best.values() if scenario.severity}
    kept = [one for one in best.values() if one.severity or _identify(one) not in corrupted]
    return sorted(kept, key=_place)


def _name_columns(scenarios: Sequence[Scenario]) -> dict[Scenario, str]:
    """The heads of the columns; they name severities if there are several."""
    several = len({scenario.severity for scenario in scenarios if scenario.severity}) > 1
    return {scenario: scenario.describe(several) for scenario in scenarios}


def _share_out(members: Sequence[Series], scenarios: Sequence[Scenario]) -> dict[Scenario, list[Series]]:
    """The series of a line by column.

    Clean images count with every severity that the line was run at. Where there is one severity only, a line with clean
    images alone is in its column too.
    """
    severities: dict[tuple[Any, ...], int] = {}
    for scenario in scenarios:
        severities[_identify(scenario.clean)] = severities.get(_identify(scenario.clean), 0) + 1
    found = {}
    for scenario in scenarios:
        corrupted = any(find_scenario(one) == scenario for one in members)
        fits = {scenario, scenario.clean} if corrupted or severities[_identify(scenario.clean)] == 1 else set()
        found[scenario] = [one for one in members if find_scenario(one) in fits]
    return found


def _place(scenario: Scenario) -> tuple[Any, ...]:
    kind = scenario.order.split()[0]
    place = ORDERS.index(kind) if kind in ORDERS else len(ORDERS)
    kinds = scenario.order == HAUL, STREAMS.index(scenario.stream), place, len(scenario.order), scenario.order
    return *kinds, -scenario.severity, -scenario.batch_size


def _list_others(members: Sequence[Series], own: Mapping[Scenario, Sequence[Series]]) -> list[str]:
    """Streams of a line on other images than those of their column, where it has no number there."""
    empty = {_identify(one) for scenario, series in own.items() if not series for one in (scenario, scenario.clean)}
    shown = {find_scenario(one) for series in own.values() for one in series}
    others = {find_scenario(one) for one in members} - shown
    there = sorted((scenario for scenario in others if _identify(scenario) in empty), key=_place)
    return [f"{scenario.describe()}, {scenario.images:,} images" for scenario in there]


def _identify(scenario: Scenario) -> tuple[Any, ...]:
    """What makes a column: of several datasets and lengths one is shown."""
    return scenario.order, scenario.stream, scenario.batch_size, scenario.severity


def _share_domains(lines: Sequence[Sequence[Series]]) -> list[str]:
    """The domains of a column that all its lines have: means over others are not comparable."""
    every = [{row.domain: None for one in members for row in one.rows} for members in lines]
    there = [own for own in every if own]
    return [domain for domain in there[0] if all(domain in own for own in there)]


def _list_rows(series: Sequence[Series], domains: Sequence[str]) -> Rows:
    return {(row.domain, row.seed): row for one in series for row in one.rows if row.domain in domains}


def _average(rows: Rows, values: Mapping[str, float]) -> dict[int, float]:
    """The mean over the domains by seed, in %, for the seeds that have all of them; ``values`` are by run."""
    domains = {domain for domain, _ in rows}
    found: dict[int, list[float]] = {}
    for (_, seed), row in rows.items():
        if row.run in values:
            found.setdefault(seed, []).append(100 * values[row.run])
    return {seed: float(np.mean(own)) for seed, own in sorted(found.items()) if len(own) == len(domains)}


def _make_line(
    runs: Runs, group: LifeGroup, first: Series, members: Sequence[Series], found: Mapping[str, Rows]
) -> tuple[Line, tuple[str, ...], str]:
    """A line from its rows by the heads of the columns, notes on samples, and in words where it is worst."""
    cells, notes, windows = [], [], []
    gains: dict[str, float] = {}
    for head, rows in found.items():
        accuracies = {row.run: row.metrics["accuracy"] or 0.0 for row in rows.values()}
        cells.append(make_cell(_average(rows, accuracies), runs=tuple(row.run for row in rows.values())))
        above = {}
        for row in rows.values():
            reference = group.find_reference(row)
            if reference is None or first.kind is LineKind.BASELINE:
                continue
            above[row.run] = accuracies[row.run] - (reference.metrics["accuracy"] or 0.0)
            measured = measure_gains(runs, group, row)
            notes.append(measured.notes)
            windows += [] if measured.value is None else [measured.value]
        if own := list(_average(rows, above).values()):
            gains[head] = float(np.mean(own))
    joined = np.concatenate(windows) if windows else None
    cells.append(Cell() if joined is None else Cell(100 * share_below(joined)))
    cells.append(Cell() if joined is None else Cell(100 * worst_drop(joined)))
    cells.append(Cell(min(gains.values())) if gains else Cell())
    where = min(gains, key=lambda name: gains[name]) if gains else ""
    words = f"{gains[where]:+.1f} in {where}" if where else ""
    return finish_line(first, cells, members=members), join_notes(*notes), words


def _describe_columns(domains: Mapping[Scenario, Sequence[str]], heads: Mapping[Scenario, str]) -> list[str]:
    """The data of the columns, those with the same together."""
    groups: dict[str, list[str]] = {}
    for scenario, names in domains.items():
        words = f"{scenario.images:,} images of {scenario.dataset}, {', '.join(names)}"
        groups.setdefault(words, []).append(heads[scenario])
    return [f"{words}: {'; '.join(columns)}." for words, columns in groups.items()]
