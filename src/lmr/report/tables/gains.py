"""How certain "ours - other" is: the paired bootstrap over images, from the answers to every image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lmr.report.noted import Noted, join_notes
from lmr.report.row_traits import LineKind, label_of
from lmr.report.runs import Runs, Samples
from lmr.report.series import Series, Setting, order_domains, share_seeds
from lmr.report.statistics import Difference, align_by_index, bootstrap_difference
from lmr.report.tables.lines import finish_line
from lmr.report.tables.table import Cell, Column, ReportTable, TableKind, name_table

REPEATS = 1 << 20  # more than the times a stream shows one image


def compare_series(runs: Runs, ours: Series, other: Series, seed: int = 0) -> Noted[Difference | None]:
    """The interval of the difference of accuracies over all domains and seeds both have, None without samples.

    An image is drawn with all of its answers, under all corruptions and in all orders. Every run has the same weight,
    so that the mean is the difference of the means in the table of accuracies.
    """
    pairs = [
        (first, second)
        for domain in ours.domains
        for order in ours.seeds
        if (first := ours.find(domain, order)) is not None and (second := other.find(domain, order)) is not None
    ]
    both = []
    for first, second in {(first.run, second.run): (first, second) for first, second in pairs}.values():
        samples = runs.samples(first), runs.samples(second)
        one, two = (answers.value for answers in samples)
        if one is None or two is None:
            return Noted(None, join_notes(*(answers.notes for answers in samples)))
        both.append((one, two))
    return Noted(compare_answers(both, seed))


def compare_answers(pairs: Iterable[tuple[Samples, Samples]], seed: int = 0) -> Difference | None:
    """The same from the answers of both to each stream; None if no image has an answer of both."""
    parts = []
    for one, two in pairs:
        mine, theirs = align_by_index(_number_answers(one["index"]), _number_answers(two["index"]))
        if len(mine):
            weight = np.full(len(mine), 1 / len(mine))
            parts.append((_mark_right(one)[mine], _mark_right(two)[theirs], one["index"][mine], weight))
    if not parts:
        return None
    right, wrong, images, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return bootstrap_difference(right, wrong, images, weights, seed=seed)


def _mark_right(samples: Samples) -> NDArray[np.bool_]:
    return np.asarray(samples["true"] == samples["predicted"])


def _number_answers(index: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for every answer: its image, and how often that came before in a stream through several domains."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    before = np.empty_like(index)
    before[order] = np.arange(len(index)) - np.searchsorted(ordered, ordered)
    return index * REPEATS + before


def build_gains(runs: Runs, setting: Setting, series: Sequence[Series]) -> Noted[ReportTable | None]:
    """Our method minus every other one with its 95 % interval; where nothing can be compared, a note says so."""
    series = share_seeds(series).value
    every = [one for one in series if one.kind is LineKind.OURS]
    lines, excluded = [], []
    narrower: dict[str, list[str]] = {}
    problems: list[tuple[str, ...]] = []
    for other in series if every else ():
        if other in every:
            continue
        ours = _find_partner(every, other)
        found = compare_series(runs, ours, other) if ours else Noted(None)
        problems.append(found.notes)
        if ours is None or found.value is None:
            excluded.append(other.label)
            continue
        gain = found.value
        cells = [Cell(100 * value, seeds=len(ours.seeds)) for value in (gain.mean, gain.low, gain.high)]
        cells.append(Cell(gain.images, seeds=len(ours.seeds)))
        lines.append(finish_line(other, cells, label=f"{ours.label} − {other.label}"))
        for limit in _find_limits(ours, other, order_domains(series)):
            narrower.setdefault(limit, []).append(lines[-1].label)
    missing = [f"Not compared, as there are no answers to the same images: {', '.join(excluded)}."] if excluded else []
    title = f"{label_of(every[0].first) if every else ''} minus others"
    if not lines:
        absent = [f"The table {title!r} is left out for {setting.describe()}. {note}" for note in missing]
        return Noted(None, join_notes(*problems, absent))
    columns = [Column(key, head, 2, None) for key, head in (
        ("difference", "difference"), ("low", "2.5 %"), ("high", "97.5 %"))]  # fmt: skip
    columns.append(Column("distinct_images", "images", 0, None))
    notes = ["Paired bootstrap over images, 2000 draws; an image is drawn with all of its corruptions and seeds."]
    notes += ["A pair whose interval contains 0 is statistically indistinguishable."]
    notes += [f"Only over {limit}: {', '.join(labels)}." for limit, labels in narrower.items()]
    table = ReportTable(
        TableKind.GAINS,
        name_table(TableKind.GAINS, setting),
        f"{title}, points of accuracy: {setting.describe()}",
        tuple(columns),
        tuple(lines),
        "pair",
        notes=(*notes, *missing),
    )
    return Noted(table, join_notes(*problems))


def _find_limits(ours: Series, other: Series, domains: Sequence[str]) -> list[str]:
    """Why a difference is not that of the table of accuracies."""
    common = [domain for domain in domains if domain in ours.domains and domain in other.domains]
    words = [f"{len(common)} of {len(domains)} domains"] if len(common) < len(domains) else []
    return words + (["the images both have"] if ours.first.images != other.first.images else [])


def _find_partner(ours: Sequence[Series], other: Series) -> Series | None:
    """Our series that shares most with the other; it must have seen the same images in the same stream."""
    same = [one for one in ours if (one.data, one.stream) == (other.data, other.stream)]

    def count(one: Series) -> tuple[int, bool, bool]:
        agreeing = sum(a == b for a, b in zip(one.ground, other.ground, strict=True))
        return agreeing, one.first.images == other.first.images, one.first.batch_size == other.first.batch_size

    return max(same, key=count, default=None)
