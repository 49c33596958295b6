"""How far "ours - other" can be trusted: the paired bootstrap over pictures, from the answers to every picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.bench.comparison import Difference, bootstrap_difference
from lmr.bench.gather import Runs, Series, Setting
from lmr.bench.table import Cell, Column, Table
from lmr.bench.tables import finish_line, make_name

OURS = "lmr"
Marks = dict[tuple[int, int], bool]


def compare_series(runs: Runs, ours: Series, other: Series, seed: int = 0) -> Difference | None:
    """The interval of the difference of accuracies over all domains and seeds both have, None without samples.

    A picture stands for itself under all corruptions: it is drawn with all of its answers.
    """
    pairs = [
        (first, second)
        for domain in ours.domains
        for order in ours.seeds
        if (first := ours.find(domain, order)) is not None and (second := other.find(domain, order)) is not None
    ]
    unique = {(first.run, second.run): (first, second) for first, second in pairs}
    right: list[tuple[Marks, Marks]] = []
    for first, second in unique.values():
        one, two = runs.samples(first), runs.samples(second)
        if one is None or two is None:
            return None
        right.append((_mark_right(one), _mark_right(two)))
    if not right:
        return None
    common = sorted(set.intersection(*(set(marks) for pair in right for marks in pair)))
    if not common:
        return None
    stacks = [np.array([[pair[side][i] for i in common] for pair in right], bool) for side in (0, 1)]
    return bootstrap_difference(stacks[0], stacks[1], seed=seed)


def _mark_right(samples: dict[str, NDArray[Any]]) -> Marks:
    """Picture -> whether it was answered rightly; a stream through several domains meets a picture more than once."""
    met: Counter[int] = Counter()
    marks = {}
    for index, right in zip(samples["index"].tolist(), (samples["true"] == samples["predicted"]).tolist(), strict=True):
        marks[index, met[index]] = right
        met[index] += 1
    return marks


def build_gains(runs: Runs, setting: Setting, series: Sequence[Series]) -> Table | None:
    """LMR minus every other method with its 95 % interval."""
    ours = next((one for one in reversed(series) if one.first.method == OURS and not one.changes), None)
    if ours is None:
        return None
    lines, excluded = [], []
    for other in series:
        if other is ours:
            continue
        found = compare_series(runs, ours, other)
        if found is None:
            excluded.append(other.label)
            continue
        cells = [Cell(100 * value, seeds=len(ours.seeds)) for value in (found.mean, found.low, found.high)]
        lines.append(finish_line(other, cells, label=f"{ours.label} − {other.label}"))
    if not lines:
        return None
    notes = ["Paired bootstrap over pictures, 2000 draws; a picture is drawn with all of its corruptions."]
    notes += [f"Not compared, no answers to the same pictures are there: {', '.join(excluded)}."] if excluded else []
    columns = [Column(key, head, 2, None) for key, head in (
        ("difference", "difference"), ("low", "2.5 %"), ("high", "97.5 %"))]  # fmt: skip
    return Table(
        make_name("gains", setting),
        f"LMR minus others, points of accuracy: {setting.describe()}",
        tuple(columns),
        tuple(lines),
        "pair",
        notes=tuple(notes),
    )
