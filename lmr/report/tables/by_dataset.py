"""Tables with datasets as columns: the ImageNet variants, and the parts of LMR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmr.data.corruptions import CORRUPTIONS
from lmr.report.paper.published import AVERAGE, PublishedRow, PublishedTable, find_published
from lmr.report.series import Series, Setting, share_seeds
from lmr.report.tables.corruptions import (
    HEADS,
    VARIANTS,
    choose_main,
    cite,
    find_common,
    finish_line,
    list_differences,
    list_runs,
    note_main,
    with_base,
)
from lmr.report.tables.distinction import note_differences, tell_apart
from lmr.report.tables.table import Cell, Column, Table, make_cell


def build_variants(settings: dict[Setting, list[Series]]) -> Table | None:
    """ImageNet-A, -R, -Sketch and -V2 as columns; the first of the tables where there are several."""
    return next(iter(list_variants(settings)), None)


def list_variants(settings: dict[Setting, list[Series]]) -> list[Table]:
    """ImageNet-A, -R, -Sketch and -V2 as columns: a table for every backbone, prompts and order."""
    chosen = {s: choose_main(series) for s, series in settings.items() if s.dataset in VARIANTS}
    notes = {s: note_main(shown, settings[s]) for s, shown in chosen.items()}
    return _build_tables(chosen, "imagenet-variants", "ImageNet variants: accuracy (%)", VARIANTS, notes)


def build_components(settings: dict[Setting, list[Series]]) -> list[Table]:
    """The parts of LMR, mean accuracy, datasets as columns."""
    found = {}
    for setting, series in settings.items():
        if parts := [s for s in series if s.is_part]:
            found[setting] = with_base(parts, series)
    return _build_tables(found, "ablation-components", "The parts of LMR: mean accuracy over the corruptions (%)")


def _build_tables(
    found: dict[Setting, list[Series]],
    name: str,
    title: str,
    sets: Sequence[str] = (),
    notes: dict[Setting, list[str]] | None = None,
) -> list[Table]:
    """A table for all settings that differ in the dataset alone; with given ``sets`` the last column is their mean."""
    groups: dict[tuple[Any, ...], dict[Setting, list[Series]]] = {}
    for setting, series in found.items():
        groups.setdefault(setting.protocol, {})[setting] = series
    tables = []
    for number, group in enumerate(groups.values()):
        head = f"{title}: {next(iter(group)).describe(dataset=False)}"
        own = f"{name}-{number + 1}" if number else name
        said = {setting.dataset: notes[setting] for setting in group} if notes else {}
        tables.append(_build_by_dataset(group, find_published(name), own, head, sets, _say_once(said)))
    return tables


def _build_by_dataset(
    found: dict[Setting, list[Series]],
    published: PublishedTable,
    name: str,
    title: str,
    sets: Sequence[str],
    notes: Sequence[str],
) -> Table:
    """One line per configuration, one column per dataset; a dataset's number is its mean over the domains."""
    average = bool(sets)
    sets = sets or [setting.dataset for setting in found]
    shared = {setting.dataset: share_seeds(series) for setting, series in found.items()}
    covered = {dataset: find_common(series) for dataset, (series, _) in shared.items()}
    columns = tuple(Column(d, HEADS.get(d, d)) for d in [*sets, *([AVERAGE] if average else [])])
    lines = []
    for label, members in _join_datasets({dataset: series for dataset, (series, _) in shared.items()}):
        one = next(iter(members.values()))
        theirs = published.find(one.first.spec)
        differs: list[str] = []
        cells = []
        for dataset in sets:
            member, domains = members.get(dataset), covered.get(dataset, [])
            beside = theirs.value(dataset) if theirs else None
            if member is None:
                cells.append(Cell(published=beside))
                continue
            cells.append(make_cell(member.average(domains), beside, list_runs(member, domains)))
            if beside is not None:
                differs += list_differences([member], published, theirs, dataset)
                differs += [] if average else _compare_domains(domains)
        if average:
            cells.append(_average_cells(cells, theirs))
        lines.append(finish_line(one, cells, list(dict.fromkeys(differs)), label, list(members.values())))
    words = _say_once({d: left for d, (_, left) in shared.items()})
    words += [f"{d}: mean over {len(domains)} domains" for d, domains in covered.items() if len(domains) > 1]
    words += _say_once({d: note_differences(series) for d, (series, _) in shared.items()})
    source = cite(published) if any(line.has_published for line in lines) else ""
    return Table(name, title, columns, tuple(lines), published=source, notes=(*words, *notes))


def _say_once(notes: dict[str, list[str]]) -> list[str]:
    """Notes on datasets: what holds for all is said once, the rest with the names."""
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
    """Where a mean is not over the paper's corruptions."""
    count, known = len(domains), len(CORRUPTIONS)
    if set(domains) == set(CORRUPTIONS):
        return []
    return [f"{count} of {known} corruptions" if count < known else f"{count} corruptions (paper: {known})"]


def _average_cells(cells: Sequence[Cell], theirs: PublishedRow | None) -> Cell:
    values = [cell.value for cell in cells if cell.value is not None]
    mean = sum(values) / len(values) if len(values) == len(cells) else None
    runs = tuple(run for cell in cells for run in cell.runs)
    return Cell(mean, None, min(cell.seeds for cell in cells), theirs.value(AVERAGE) if theirs else None, runs)
