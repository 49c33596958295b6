"""Tables with datasets as columns: the ImageNet variants, and the parts of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmr.data.corruptions import CORRUPTIONS
from lmr.report.paper.abbreviations import HEADS, VARIANTS
from lmr.report.paper.paper_tables import AVERAGE, PublishedRow, PublishedTable, find_published
from lmr.report.row_traits import label_of
from lmr.report.series import Series, Setting, find_common, share_seeds
from lmr.report.tables.distinction import note_differences, tell_apart
from lmr.report.tables.lines import find_theirs, finish_line, list_differences, list_runs
from lmr.report.tables.selection import choose_main, group_parts, note_main, with_base
from lmr.report.tables.table import Cell, Column, ReportTable, TableKind, make_cell


def list_variants(settings: dict[Setting, list[Series]]) -> list[ReportTable]:
    """ImageNet-A, -R, -Sketch and -V2 as columns: a table for every backbone, prompts and order."""
    chosen = {s: choose_main(series) for s, series in settings.items() if s.dataset in VARIANTS}
    notes = {s: note_main(shown, settings[s]) for s, shown in chosen.items()}
    return _build_tables(chosen, TableKind.VARIANTS, "ImageNet variants: accuracy (%)", VARIANTS, notes)


def build_components(settings: dict[Setting, list[Series]]) -> list[ReportTable]:
    """The parts of each method that has some, mean accuracy, datasets as columns."""
    found: dict[str, dict[Setting, list[Series]]] = {}
    for setting, series in settings.items():
        for parts in group_parts(series):
            found.setdefault(label_of(parts[0].first), {})[setting] = with_base(parts, series)
    tables: list[ReportTable] = []
    for label, members in found.items():
        title = f"The parts of {label}: mean accuracy over the corruptions (%)"
        tables += _build_tables(members, TableKind.COMPONENTS, title, before=len(tables))
    return tables


def _build_tables(
    found: dict[Setting, list[Series]],
    kind: TableKind,
    title: str,
    sets: Sequence[str] = (),
    notes: dict[Setting, list[str]] | None = None,
    before: int = 0,
) -> list[ReportTable]:
    """A table for all settings that differ only in the dataset; with given ``sets`` the last column is their mean.

    ``before`` is how many tables of this kind there already are: they are numbered.
    """
    groups: dict[Setting, dict[Setting, list[Series]]] = {}
    for setting, series in found.items():
        groups.setdefault(setting.protocol, {})[setting] = series
    tables = []
    for number, (protocol, group) in enumerate(groups.items(), before + 1):
        name = kind.value if number == 1 else f"{kind.value}-{number}"
        head = f"{title}: {protocol.describe(dataset=False)}"
        said = {setting.dataset: notes[setting] for setting in group} if notes else {}
        tables.append(_build_by_dataset(group, kind, name, head, sets, _say_once(said)))
    return tables


def _build_by_dataset(
    found: dict[Setting, list[Series]],
    kind: TableKind,
    name: str,
    title: str,
    sets: Sequence[str],
    notes: Sequence[str],
) -> ReportTable:
    """One line per configuration, one column per dataset; a dataset's number is its mean over the domains."""
    published = find_published(kind.value)
    average = bool(sets)
    sets = sets or [setting.dataset for setting in found]
    shared = {setting.dataset: share_seeds(series) for setting, series in found.items()}
    covered = {dataset: find_common(series.value) for dataset, series in shared.items()}
    columns = tuple(Column(d, HEADS.get(d, d)) for d in [*sets, *([AVERAGE] if average else [])])
    lines = []
    for label, members in _join_datasets({dataset: series.value for dataset, series in shared.items()}):
        one = next(iter(members.values()))
        theirs = find_theirs(one, published)
        differs: list[str] = []
        cells = []
        for dataset in sets:
            member, domains = members.get(dataset), covered.get(dataset, [])
            printed = theirs.value(dataset) if theirs else None
            if member is None:
                cells.append(Cell(published=printed))
                continue
            cells.append(make_cell(member.average(domains), printed, list_runs(member, domains)))
            if printed is not None:
                differs += list_differences([member], published, theirs, dataset)
                differs += [] if average else _compare_domains(domains)
        if average:
            cells.append(_average_cells(cells, theirs))
        lines.append(finish_line(one, cells, list(dict.fromkeys(differs)), label, list(members.values())))
    words = _say_once({d: series.notes for d, series in shared.items()})
    words += [f"{d}: mean over {len(domains)} domains" for d, domains in covered.items() if len(domains) > 1]
    words += _say_once({d: note_differences(series.value) for d, series in shared.items()})
    source: PublishedTable | None = published if any(line.has_published for line in lines) else None
    return ReportTable(kind, name, title, columns, tuple(lines), published=source, notes=(*words, *notes))


def _say_once(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on datasets: what holds for all is stated once, the rest with the names."""
    sets: dict[str, list[str]] = {}
    for dataset, own in notes.items():
        for note in own:
            sets.setdefault(note, []).append(dataset)
    return [note if len(found) == len(notes) else f"{', '.join(found)}: {note}" for note, found in sets.items()]


def _join_datasets(series: dict[str, list[Series]]) -> list[tuple[str, dict[str, Series]]]:
    """Label, and dataset -> series, for every line: series of one label and one model."""
    lines: dict[tuple[str, ...], dict[str, Series]] = {}
    for dataset, members in series.items():
        for one in members:
            model = one.first.backbone.get("weights", ""), one.first.backbone.get("dtype", "")
            lines.setdefault((one.label, *model), {})[dataset] = one
    named = tell_apart(next(iter(members.values())) for members in lines.values())
    return [(one.label, members) for one, members in zip(named, lines.values(), strict=True)]


def _compare_domains(domains: Sequence[str]) -> list[str]:
    """Whether a mean is over other corruptions than the paper's."""
    count, known = len(domains), len(CORRUPTIONS)
    if set(domains) == set(CORRUPTIONS):
        return []
    return [f"{count} of {known} corruptions" if count < known else f"{count} corruptions (paper: {known})"]


def _average_cells(cells: Sequence[Cell], theirs: PublishedRow | None) -> Cell:
    values = [cell.value for cell in cells if cell.value is not None]
    mean = sum(values) / len(values) if len(values) == len(cells) else None
    runs = tuple(run for cell in cells for run in cell.runs)
    return Cell(mean, None, min(cell.seeds for cell in cells), theirs.value(AVERAGE) if theirs else None, runs)
