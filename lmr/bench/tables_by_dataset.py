"""Tables with datasets as columns: the ImageNet variants, and the parts of LMR."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lmr.bench.gather import Series, Setting, share_seeds
from lmr.bench.reference import AVERAGE, PublishedRow, find_published
from lmr.bench.table import Cell, Column, Table, make_cell
from lmr.bench.tables import (
    HEADS,
    VARIANTS,
    choose_main,
    cite,
    finish_line,
    list_differences,
    list_runs,
    order_domains,
    with_base,
)


def build_variants(settings: dict[Setting, list[Series]]) -> Table | None:
    """ImageNet-A, -R, -Sketch and -V2 as columns."""
    found = {s: choose_main(series) for s, series in settings.items() if s.dataset in VARIANTS}
    return build_by_dataset(found, "imagenet-variants", "ImageNet variants: accuracy (%)", VARIANTS, average=True)


def build_components(settings: dict[Setting, list[Series]]) -> list[Table | None]:
    """The parts of LMR, mean accuracy, datasets as columns."""
    groups: dict[tuple[str, str, int, str, str], dict[Setting, list[Series]]] = {}
    for setting, series in settings.items():
        if parts := [s for s in series if s.is_part]:
            key = (setting.backbone, setting.prompts, setting.severity, setting.order, setting.reset)
            groups.setdefault(key, {})[setting] = with_base(parts, series)
    title = "The parts of LMR: mean accuracy over the corruptions (%)"
    tables = []
    for number, found in enumerate(groups.values()):
        sets = tuple(dict.fromkeys(setting.dataset for setting in found))
        name = "ablation-components" + (f"-{number + 1}" if number else "")
        tables.append(build_by_dataset(found, name, title, sets, average=False))
    return tables


def build_by_dataset(
    found: dict[Setting, list[Series]], name: str, title: str, sets: Sequence[str], average: bool
) -> Table | None:
    """One line per configuration, one column per dataset; a dataset's number is its mean over the domains."""
    if not found:
        return None
    published = find_published(re.sub(r"-\d$", "", name))
    shared = {setting: share_seeds(series) for setting, series in found.items()}
    found = {setting: series for setting, (series, _) in shared.items()}
    columns = tuple(Column(d, HEADS.get(d, d)) for d in [*sets, *([AVERAGE] if average else [])])
    by_label: dict[str, dict[str, Series]] = {}
    for setting, series in found.items():
        for one in series:
            by_label.setdefault(one.label, {})[setting.dataset] = one
    covered: dict[str, list[str]] = {
        setting.dataset: [d for d in order_domains(series) if all(d in one.domains for one in series)]
        for setting, series in found.items()
    }
    lines = []
    for label, members in by_label.items():
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
            differs += list_differences([member], published, theirs, dataset) if beside is not None else []
        if average:
            cells.append(_average_cells(cells, theirs))
        lines.append(finish_line(one, cells, list(dict.fromkeys(differs)), label))
    notes = list(dict.fromkeys(note for _, words in shared.values() for note in words))
    notes += [f"{d}: mean over {len(found)} domains" for d, found in covered.items() if len(found) > 1]
    has_published = any(line.has_published for line in lines)
    return Table(
        name, title, columns, tuple(lines), published=cite(published) if has_published else "", notes=tuple(notes)
    )


def _average_cells(cells: Sequence[Cell], theirs: PublishedRow | None) -> Cell:
    values = [cell.value for cell in cells if cell.value is not None]
    mean = sum(values) / len(values) if len(values) == len(cells) else None
    runs = tuple(run for cell in cells for run in cell.runs)
    return Cell(mean, None, min(cell.seeds for cell in cells), theirs.value(AVERAGE) if theirs else None, runs)
