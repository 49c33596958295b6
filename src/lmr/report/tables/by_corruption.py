"""Tables with corruptions as columns: the accuracy of methods, and of a method with parts switched off."""

from __future__ import annotations

from collections.abc import Sequence

from lmr.report.paper.abbreviations import HEADS
from lmr.report.paper.paper_tables import AVERAGE, PublishedTable, match_corruption_table
from lmr.report.row_traits import LineKind, label_of
from lmr.report.series import Series, Setting, order_domains, share_seeds
from lmr.report.tables.distinction import note_differences
from lmr.report.tables.lines import find_theirs, finish_line, list_differences, list_runs
from lmr.report.tables.table import Column, Line, ReportTable, TableKind, make_cell, name_table

PAPER_COLUMNS = 15  # corruptions that a published average is over


def build_accuracy(
    setting: Setting, series: Sequence[Series], published: PublishedTable | None = None, notes: Sequence[str] = ()
) -> ReportTable | None:
    """Accuracies on every domain and their average, next to the published numbers on the same data.

    ``published`` names the published table to compare with, also if it is about other data.
    """
    published = published or match_corruption_table(setting.dataset, setting.backbone, setting.prompts)
    absent = [] if published else [f"The paper has no numbers for {setting.dataset}, so none are shown."]
    return _build(TableKind.ACCURACY, "Accuracy (%)", setting, series, published, notes, absent)


def build_parts(setting: Setting, series: Sequence[Series]) -> ReportTable | None:
    """Accuracies of one method with parts switched off."""
    label = next((label_of(one.first) for one in series if one.kind is LineKind.PART), "")
    return _build(TableKind.PARTS, f"The parts of {label}, accuracy (%)", setting, series)


def _build(
    kind: TableKind,
    title: str,
    setting: Setting,
    series: Sequence[Series],
    published: PublishedTable | None = None,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> ReportTable | None:
    if not series:
        return None
    shared = share_seeds(series)
    domains = order_domains(shared.value)
    columns = tuple(Column(d, HEADS.get(d, d)) for d in [*domains, *([AVERAGE] if len(domains) > 1 else [])])
    lines = tuple(_make_line(one, columns, domains, published) for one in shared.value)
    notes = (*before, *shared.notes, *after, *note_differences(shared.value))
    name = name_table(kind, setting)
    return ReportTable(kind, name, f"{title}: {setting.describe()}", columns, lines, published=published, notes=notes)


def _make_line(
    one: Series, columns: Sequence[Column], domains: Sequence[str], published: PublishedTable | None
) -> Line:
    theirs = find_theirs(one, published)
    cells = []
    for column in columns:
        about = domains if column.key == AVERAGE else [column.key]
        comparable = column.key != AVERAGE or len(about) == PAPER_COLUMNS
        printed = theirs.value(column.key) if theirs and comparable else None
        cells.append(make_cell(one.average(about), printed, list_runs(one, about)))
    return finish_line(one, cells, list_differences([one], published, theirs))
