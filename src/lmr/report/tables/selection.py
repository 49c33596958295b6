"""Which series a table shows, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmr.report.paper.paper_tables import PRESETS, find_published
from lmr.report.row_traits import LineKind, find_known, place_of
from lmr.report.series import Series
from lmr.report.tables.distinction import note_left_out, tell_apart


def choose_main(series: Sequence[Series]) -> list[Series]:
    """The series of the main table in order: no parts switched off, no sweeps, one batch size per configuration.

    Of several numbers of images the largest is shown, and any that another line has for its largest.
    """
    groups: dict[tuple[Any, ...], list[Series]] = {}
    for one in sorted(filter(_is_main, series), key=_weigh):
        groups.setdefault((*one.configuration, one.first.emit, *one.ground), []).append(one)
    counts = {group[-1].first.images for group in groups.values()}
    chosen = [
        one for group in groups.values() for count, one in {s.first.images: s for s in group}.items() if count in counts
    ]
    return tell_apart(sort_series(chosen))


def choose_together(series: Sequence[Series], main: Sequence[Series]) -> list[Series]:
    """The configurations of the main table in one batch size, the largest that all were run in on the same data.

    Nothing if the main table has one batch size itself, or if there is none that all have.
    """
    if len({one.first.batch_size for one in main}) < 2:
        return []
    found: dict[tuple[Any, ...], dict[int, Series]] = {}
    for one in filter(_is_main, series):
        found.setdefault(_identify(one), {})[one.first.batch_size] = one
    whole = [
        {size: other for size, other in found[_identify(one)].items() if set(one.domains) <= set(other.domains)}
        for one in main
    ]
    sizes = set.intersection(*(set(own) for own in whole))
    return tell_apart(sort_series([own[max(sizes)] for own in whole])) if sizes else []


def _identify(one: Series) -> tuple[Any, ...]:
    """Everything but the batch size."""
    return (*one.configuration, one.first.emit, one.first.images, *one.ground)


def note_main(shown: Sequence[Series], series: Sequence[Series]) -> list[str]:
    """Which series could be in the main table and are not."""
    return note_left_out(shown, [one for one in series if _is_main(one)])


def _is_main(one: Series) -> bool:
    return one.kind not in (LineKind.PART, LineKind.STEP)


def _weigh(series: Series) -> tuple[int, int, bool, int]:
    """Of several runs of one configuration the table shows the one with most domains, most images, its own batch."""
    row = series.first
    return len(series.domains), row.images, row.batch_size == find_usual_batch(series), row.batch_size


def find_usual_batch(series: Series) -> int | None:
    """The batch size that the method's values for this dataset were chosen for."""
    method = find_known(series.first.method)
    presets = method.card.presets if method else {}
    preset = presets.get(PRESETS.get(series.setting.dataset, "default")) or presets.get("default")
    return preset.batch_size if preset else None


def sort_series(series: Sequence[Series]) -> list[Series]:
    """In the order of tables: baseline, methods without training, then by year, ours last."""
    return sorted(series, key=lambda one: (place_of(one.first), one.label))


def group_parts(series: Sequence[Series]) -> list[list[Series]]:
    """The series with parts switched off, together for every method."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        if one.kind is LineKind.PART:
            groups.setdefault(one.first.method, []).append(one)
    return list(groups.values())


def with_base(parts: Sequence[Series], series: Sequence[Series]) -> list[Series]:
    """Variations of one method between the baseline and the unchanged method, under the same protocol."""
    baselines: dict[tuple[Any, ...], Series] = {}
    for one in sorted(series, key=lambda s: -len(s.domains)):
        if one.kind is LineKind.BASELINE:
            baselines.setdefault((one.first.images, *one.ground), one)
    keys = dict.fromkeys((s.first.images, *s.ground) for s in parts)
    contexts = {(s.first.images, s.first.batch_size, *s.ground) for s in parts}
    methods = {s.first.method for s in parts}
    whole = [s for s in series if s.first.method in methods and not s.changes
             and (s.first.images, s.first.batch_size, *s.ground) in contexts]  # fmt: skip
    table = find_published("ablation-components")

    def place(one: Series) -> int:
        row = table.find(one.first.spec)
        return table.rows.index(row) if row else len(table.rows)

    return tell_apart([*(baselines[key] for key in keys if key in baselines), *sorted(parts, key=place), *whole])
