"""Skewed classes and onsets: how far methods fall below the frozen model, in accuracy and in macro recall.

Under skew neither measure alone tells the truth: who always answers with the most frequent class has a high accuracy,
and who spreads the answers evenly finds the rare classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lmr.bench.running.metrics import judge_classes
from lmr.bench.running.row import Row
from lmr.report.groups import SHUFFLE, RunGroup, Settings, sort_domains, split
from lmr.report.leaderboard import World, find_worlds, identify_line, name_order
from lmr.report.runs import Runs
from lmr.report.selection import sort_groups, tell_apart
from lmr.report.table import Cell, Column, Line, Table, TableKind
from lmr.report.traits import LineKind

MEASURES = {
    "accuracy": "accuracy",
    "accuracy_second_half": "accuracy, second half",
    "macro_recall": "macro recall",
    "macro_recall_second_half": "macro recall, second half",
}
COLUMNS = (
    *(
        Column(f"{key}-{part}", head, 1)
        for key, name in MEASURES.items()
        for part, head in (("mean", name), ("worst", f"worst {name}"))
    ),
    Column("streams", "streams", 0, None),
)
NOTE = (
    "Points above the frozen model on the same stream: the mean over the streams, and the worst single stream. Macro "
    "recall is the mean of the recalls of the classes in the stream. Clean images before an onset are not counted."
)


def build_skew(runs: Runs, settings: Settings) -> list[Table]:
    """Return a table for every model, dataset and kind of stream with skewed classes or an onset.

    Shuffled streams of the same length are there to compare with. Clean images count with every severity.
    """
    tables = []
    for world in find_worlds(settings, lambda one: one.setting.skewed):
        lengths = {one.first.images for one in world.groups if one.setting.skewed}
        groups = [one for one in world.groups if one.setting.skewed or _is_shuffled(one, lengths)]
        several = len({one.setting.severity for one in groups} - {0}) > 1
        groups.sort(key=_place_scenario)
        for (scenario, _), members in split(groups, _identify_scenario).items():
            for severity in sorted({one.setting.severity for one in members} - {0}, reverse=True) or [0]:
                shown = [one for one in members if one.setting.severity in (severity, 0)]
                name = f"{scenario}, severity {severity}" if several and severity else scenario
                tables.append(_build(runs, world, name, shown))
    return tables


def _is_shuffled(one: RunGroup, lengths: set[int]) -> bool:
    return one.setting.order == SHUFFLE and not one.setting.stream.several and one.first.images in lengths


def _identify_scenario(one: RunGroup) -> tuple[str, int]:
    return name_order(one.first.order), one.first.images


def _place_scenario(one: RunGroup) -> tuple[Any, ...]:
    """Return a key that sorts scenarios: onsets last, then from shuffled streams to long tails and changes."""
    order, dominant = one.first.order, one.first.order.get("dominant", "")
    several = ">" in dominant, "tail" in order, "+" in dominant
    return "onset" in order, order["kind"] != SHUFFLE, *several, order.get("majority", ""), one.first.images


def _build(runs: Runs, world: World, scenario: str, groups: Sequence[RunGroup]) -> Table:
    rows = [row for one in groups for row in one.rows]
    measured = pd.DataFrame({row.run: _measure(runs, row) for row in rows}, dtype=float).T
    references = {row.run: found.run for row in rows if (found := world.find_reference(row))}
    adapted = [one for one in groups if one.kind is not LineKind.BASELINE]
    adapted.sort(key=lambda one: -one.first.batch_size)
    lines = split(sort_groups(adapted), lambda one: (*identify_line(one), one.first.batch_size)).values()
    firsts = tell_apart(members[0] for members in lines)
    made = [_make_line(own, members, measured, references) for own, members in zip(firsts, lines, strict=True)]
    sizes = {one.first.batch_size for one in adapted}
    notes = [NOTE, _describe_streams(rows), *([f"Batches of {min(sizes)}."] if len(sizes) == 1 else [])]
    if references:
        frozen = measured.loc[list(dict.fromkeys(references.values()))].mean()
        notes.append(f"The frozen model: {'; '.join(f'{MEASURES[key]} {frozen[key]:.1f} %' for key in MEASURES)}.")
    title = f"Against the frozen model, {scenario}"
    return world.setting.make_table(TableKind.SKEW, title, COLUMNS, made, scenario, notes=tuple(notes))


def _measure(runs: Runs, row: Row) -> dict[str, float | None]:
    """Return the measures of a run in %; those that an old row does not hold are computed from its answers."""
    found: Mapping[str, float | None] = row.metrics
    if any(found.get(key) is None for key in MEASURES) and (samples := runs.samples(row)) is not None:
        onset = int(row.order.get("onset", 0))
        found = judge_classes(samples["predicted"][onset:], samples["true"][onset:])
    return {key: None if (value := found.get(key)) is None else 100 * value for key in MEASURES}


def _make_line(
    first: RunGroup, members: Sequence[RunGroup], measured: pd.DataFrame, references: Mapping[str, str]
) -> Line:
    """Return a line with the differences of its runs to those of the frozen model."""
    own = [row.run for one in members for row in one.rows if row.run in references]
    frozen = [references[run] for run in own]
    above = measured.loc[own] - measured.loc[frozen].to_numpy()
    runs = tuple(dict.fromkeys([*own, *frozen]))
    cells = []
    for key in MEASURES:
        known = above[key].dropna()
        cells += [Cell(float(value), runs=runs) if len(known) else Cell() for value in (known.mean(), known.min())]
    return first.make_line([*cells, Cell(len(own), runs=runs)], members=members)


def _describe_streams(rows: Sequence[Row]) -> str:
    dominant = sorted({row.order["dominant"] for row in rows if "dominant" in row.order})
    facts = [f"{rows[0].images:,} images of {rows[0].dataset}", ", ".join(sort_domains(row.domain for row in rows))]
    facts += [f"dominant classes {', '.join(dominant)}"] if dominant else []
    facts += [f"seeds {', '.join(str(seed) for seed in sorted({row.seed for row in rows}))}"]
    return f"{'; '.join(facts)}."
