"""Tables with metrics as columns: everything that was measured, and the cost of single images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmr.report.paper.paper_tables import PublishedTable, find_published
from lmr.report.series import Series, Setting, find_common, order_domains, share_seeds
from lmr.report.tables.distinction import note_differences, note_left_out, tell_apart
from lmr.report.tables.lines import find_theirs, finish_line, list_differences, list_runs
from lmr.report.tables.selection import find_usual_batch, sort_series
from lmr.report.tables.table import Column, ReportTable, TableKind, make_cell, name_table

MEASURES: dict[str, Column] = {
    key: Column(key, head, digits, higher)
    for key, head, digits, higher in (
        ("accuracy", "accuracy %", 2, True),
        ("clean_accuracy", "clean after stream %", 2, True),
        ("ece", "ECE %", 2, False),
        ("nll", "NLL", 3, False),
        ("classes_predicted", "classes predicted %", 1, None),
        ("effective_classes", "effective classes", 1, None),
        ("top_share", "top class %", 2, None),
        ("late_top_share", "late top class %", 2, None),
        ("gate_share", "gate open %", 1, None),
        ("protected_size", "protected classes", 2, None),
        ("drift", "norm drift", 3, None),
        ("forwards", "forwards", 2, False),
        ("ms_per_image", "ms/image", 2, False),
        ("peak_mb", "peak MB", 1, False),
        ("trainable", "trained parameters", 0, None),
    )
}
COSTS = ("ms_per_image", "peak_mb", "trainable")


def build_measures(setting: Setting, series: Sequence[Series]) -> ReportTable | None:
    """Everything that was measured, averaged over the domains that all lines have."""
    return _build(TableKind.MEASURES, "All measures", setting, series, tuple(MEASURES.values()))


def build_costs(setting: Setting, series: Sequence[Series]) -> ReportTable | None:
    """Cost of single images, as in the paper's table of efficiency, if a method was run on one image at a time.

    Methods whose own batch size is 1 are not enough: their accuracy runs are no measurement of the cost.
    """
    single = [s for s in series if s.first.batch_size == 1 and not s.changes]
    counts = [s.first.images for s in single]
    shown = [s for s in single if s.first.images == max(counts, key=counts.count)]
    if len(shown) < 2 or not any(find_usual_batch(s) != 1 for s in shown):
        return None
    published = find_published("efficiency") if setting.dataset == "imagenet-c-5000" else None
    columns = tuple(MEASURES[key] for key in COSTS)
    ordered = tell_apart(sort_series(shown))
    left = note_left_out(ordered, single)
    return _build(TableKind.EFFICIENCY, "Cost of single images", setting, ordered, columns, published, left)


def _build(
    kind: TableKind,
    title: str,
    setting: Setting,
    series: Sequence[Series],
    columns: Sequence[Column],
    published: PublishedTable | None = None,
    notes: Sequence[str] = (),
) -> ReportTable | None:
    domains = find_common(series)
    shared = share_seeds(series, domains)
    lines = []
    for one in shared.value:
        theirs = find_theirs(one, published)
        cells = []
        for column in columns:
            printed = theirs.value(column.key) if theirs else None
            cells.append(make_cell(one.average(domains, column.key), printed, list_runs(one, domains)))
        lines.append(finish_line(one, cells, list_differences([one], published, theirs)))
    kept = [j for j in range(len(columns)) if any(line.cells[j].value is not None for line in lines)]
    if not kept:
        return None
    return ReportTable(
        kind,
        name_table(kind, setting),
        f"{title}: {setting.describe()}",
        tuple(columns[j] for j in kept),
        tuple(replace(line, cells=tuple(line.cells[j] for j in kept)) for line in lines),
        published=published,
        notes=(*shared.notes, *_note_means(domains, shared.value), *note_differences(shared.value), *notes),
    )


def _note_means(domains: Sequence[str], series: Sequence[Series]) -> list[str]:
    every = len(order_domains(series))
    if len(domains) < every:
        return [f"Means over the {len(domains)} of {every} domains that all lines have: {', '.join(domains)}."]
    return ["Means over all domains."] if every > 1 else []
