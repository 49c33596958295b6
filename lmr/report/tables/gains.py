"""How far "ours - other" can be trusted: the paired bootstrap over pictures, from the answers to every picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.report.series import Runs, Series, Setting, share_seeds
from lmr.report.statistics import Difference, align_by_index, bootstrap_difference
from lmr.report.tables.corruptions import finish_line, make_name, order_domains
from lmr.report.tables.table import Cell, Column, Table

OURS = "lmr"
MEETINGS = 1 << 20  # more often a stream meets no picture


def compare_series(runs: Runs, ours: Series, other: Series, seed: int = 0) -> Difference | None:
    """The interval of the difference of accuracies over all domains and seeds both have, None without samples.

    A picture stands for itself under all corruptions and in all orders: it is drawn with all of its answers. Every run
    counts the same, so that the mean is the difference of the means in the table of accuracies.
    """
    pairs = [
        (first, second)
        for domain in ours.domains
        for order in ours.seeds
        if (first := ours.find(domain, order)) is not None and (second := other.find(domain, order)) is not None
    ]
    parts = []
    for first, second in {(first.run, second.run): (first, second) for first, second in pairs}.values():
        one, two = runs.samples(first), runs.samples(second)
        if one is None or two is None:
            return None
        mine, theirs = align_by_index(_number_answers(one["index"]), _number_answers(two["index"]))
        if len(mine):
            weight = np.full(len(mine), 1 / len(mine))
            parts.append((_mark_right(one)[mine], _mark_right(two)[theirs], one["index"][mine], weight))
    if not parts:
        return None
    right, wrong, pictures, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return bootstrap_difference(right, wrong, pictures, weights, seed=seed)


def _mark_right(samples: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    return np.asarray(samples["true"] == samples["predicted"])


def _number_answers(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for every answer: of its picture, and how often that came before in a stream through several domains."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    before = np.empty_like(index)
    before[order] = np.arange(len(index)) - np.searchsorted(ordered, ordered)
    return index * MEETINGS + before


def build_gains(runs: Runs, setting: Setting, series: Sequence[Series]) -> Table | None:
    """LMR minus every other method with its 95 % interval; where nothing can be compared, a word says so."""
    series, _ = share_seeds(series)
    every = [one for one in series if one.first.method == OURS and not one.changes]
    lines, excluded = [], []
    narrower: dict[str, list[str]] = {}
    for other in series if every else ():
        if other in every:
            continue
        ours = _find_partner(every, other)
        found = compare_series(runs, ours, other) if ours else None
        if ours is None or found is None:
            excluded.append(other.label)
            continue
        cells = [Cell(100 * value, seeds=len(ours.seeds)) for value in (found.mean, found.low, found.high)]
        cells.append(Cell(found.pictures, seeds=len(ours.seeds)))
        lines.append(finish_line(other, cells, label=f"{ours.label} − {other.label}"))
        for words in _find_limits(ours, other, order_domains(series)):
            narrower.setdefault(words, []).append(lines[-1].label)
    missing = [f"Not compared, no answers to the same pictures are there: {', '.join(excluded)}."] if excluded else []
    if not lines:
        runs.words.extend(f"LMR minus others is left out for {setting.describe()}. {word}" for word in missing)
        return None
    columns = [Column(key, head, 2, None) for key, head in (
        ("difference", "difference"), ("low", "2.5 %"), ("high", "97.5 %"))]  # fmt: skip
    columns.append(Column("pictures", "pictures", 0, None))
    notes = ["Paired bootstrap over pictures, 2000 draws; a picture is drawn with all of its corruptions and seeds."]
    notes += [f"Only over {words}: {', '.join(labels)}." for words, labels in narrower.items()]
    return Table(
        make_name("gains", setting),
        f"LMR minus others, points of accuracy: {setting.describe()}",
        tuple(columns),
        tuple(lines),
        "pair",
        notes=(*notes, *missing),
    )


def _find_limits(ours: Series, other: Series, domains: Sequence[str]) -> list[str]:
    """What keeps a difference from being that of the table of accuracies."""
    common = [domain for domain in domains if domain in ours.domains and domain in other.domains]
    words = [f"{len(common)} of {len(domains)} domains"] if len(common) < len(domains) else []
    return words + (["the pictures both have"] if ours.first.images != other.first.images else [])


def _find_partner(ours: Sequence[Series], other: Series) -> Series | None:
    """The LMR that shares most with the other method; it must have met the same pictures in the same stream."""
    same = [one for one in ours if (one.data, one.stream) == (other.data, other.stream)]

    def count(one: Series) -> tuple[int, bool, bool]:
        agreeing = sum(a == b for a, b in zip(one.ground, other.ground, strict=True))
        return agreeing, one.first.images == other.first.images, one.first.batch_size == other.first.batch_size

    return max(same, key=count, default=None)
