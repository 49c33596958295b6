"""The tables of a report: accuracy, parts of methods, measures, costs, severities and datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lmr.data.corruptions import CORRUPTIONS
from lmr.report.groups import RunGroup, Setting, Settings, find_common, order_domains, share_seeds, split
from lmr.report.protocol import match_corruption_table
from lmr.report.published import AVERAGE, VARIANTS, PublishedTable, find_published, shorten
from lmr.report.selection import (
    add_base,
    choose_main,
    get_usual_batch,
    group_parts,
    note_differences,
    note_left_out,
    note_main,
    sort_groups,
    tell_apart,
)
from lmr.report.table import Cell, Column, Line, Table, TableKind, name_apart
from lmr.report.traits import LineKind, label_of

PAPER_COLUMNS = 15  # corruptions that a published average is over
MEASURES = (
    Column("accuracy", "accuracy %"),
    Column("clean_accuracy", "clean after stream %"),
    Column("ece", "ECE %", 2, False),
    Column("nll", "NLL", 3, False),
    Column("classes_predicted", "classes predicted %", 1, None),
    Column("effective_classes", "effective classes", 1, None),
    Column("top_share", "top class %", 2, None),
    Column("late_top_share", "late top class %", 2, None),
    Column("gate_share", "gate open %", 1, None),
    Column("protected_size", "protected classes", 2, None),
    Column("drift", "norm drift", 3, None),
    Column("forwards", "forwards", 2, False),
    Column("ms_per_image", "ms/image", 2, False),
    Column("peak_mb", "peak MB", 1, False),
    Column("trainable", "trained parameters", 0, None),
)
COSTS = ("ms_per_image", "peak_mb", "trainable")


class _Shown(NamedTuple):
    """A column of a table: a metric of each group, averaged over some domains."""

    column: Column
    domains: Sequence[str]
    metric: str = "accuracy"


def _make_line(one: RunGroup, shown: Sequence[_Shown], published: PublishedTable | None) -> Line:
    theirs = one.find_published(published)
    cells = []
    for column, domains, metric in shown:
        comparable = column.key != AVERAGE or len(domains) == PAPER_COLUMNS
        cells.append(one.cell(domains, metric, theirs.value(column.key) if theirs and comparable else None))
    return one.make_line(cells, one.list_differences(published, theirs))


def build_accuracy(
    setting: Setting, groups: Sequence[RunGroup], published: PublishedTable | None = None, notes: Sequence[str] = ()
) -> Table | None:
    """Return the accuracy on every domain and the average, next to the published numbers on the same data.

    ``published`` is a table to compare with even if it is about other data.
    """
    published = published or match_corruption_table(setting.dataset, setting.backbone, setting.prompts)
    absent = [] if published else [f"The paper has no numbers for {setting.dataset}, so none are shown."]
    return _build_by_domain(TableKind.ACCURACY, "Accuracy (%)", setting, groups, published, (notes, absent))


def build_parts(setting: Setting, groups: Sequence[RunGroup]) -> Table | None:
    """Return the accuracy of one method with parts switched off."""
    label = next((label_of(one.first) for one in groups if one.kind is LineKind.PART), "")
    return _build_by_domain(TableKind.PARTS, f"The parts of {label}, accuracy (%)", setting, groups)


def _build_by_domain(
    kind: TableKind,
    title: str,
    setting: Setting,
    groups: Sequence[RunGroup],
    published: PublishedTable | None = None,
    notes: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Table | None:
    if not groups:
        return None
    shared, dropped = share_seeds(groups)
    domains = order_domains(shared)
    shown = [_Shown(Column(domain, shorten(domain)), [domain]) for domain in domains]
    shown += [_Shown(Column(AVERAGE, shorten(AVERAGE)), domains)] if len(domains) > 1 else []
    lines = [_make_line(one, shown, published) for one in shared]
    said = (*notes[0], *dropped, *notes[1], *note_differences(shared))
    return setting.make_table(kind, title, (own.column for own in shown), lines, published=published, notes=said)


def build_measures(setting: Setting, groups: Sequence[RunGroup]) -> Table | None:
    """Return everything that was measured, averaged over the domains that all lines have."""
    return _build_by_metric(TableKind.MEASURES, "All measures", setting, groups, MEASURES)


def build_costs(setting: Setting, groups: Sequence[RunGroup]) -> Table | None:
    """Return the cost of single images, as in the paper's table of efficiency, if batches of one image were run.

    Methods whose own batch size is 1 are not enough: their accuracy runs do not measure the cost.
    """
    single = [one for one in groups if one.first.batch_size == 1 and not one.changes]
    counts = [one.first.images for one in single]
    shown = [one for one in single if one.first.images == max(counts, key=counts.count)]
    if len(shown) < 2 or not any(get_usual_batch(one) != 1 for one in shown):
        return None
    published = find_published("efficiency") if setting.dataset == "imagenet-c-5000" else None
    ordered = tell_apart(sort_groups(shown))
    columns = [column for column in MEASURES if column.key in COSTS]
    table = _build_by_metric(TableKind.EFFICIENCY, "Cost of single images", setting, ordered, columns, published)
    return table and replace(table, notes=(*table.notes, *note_left_out(ordered, single)))


def _build_by_metric(
    kind: TableKind,
    title: str,
    setting: Setting,
    groups: Sequence[RunGroup],
    columns: Sequence[Column],
    published: PublishedTable | None = None,
) -> Table | None:
    domains = find_common(groups)
    shared, dropped = share_seeds(groups, domains)
    measured = [column for column in columns if any(one.frame[column.key].notna().any() for one in shared)]
    if not domains or not measured:
        return None
    shown = [_Shown(column, domains, column.key) for column in measured]
    lines = [_make_line(one, shown, published) for one in shared]
    notes = (*dropped, *_note_means(domains, shared), *note_differences(shared))
    return setting.make_table(kind, title, measured, lines, published=published, notes=notes)


def _note_means(domains: Sequence[str], groups: Sequence[RunGroup]) -> list[str]:
    every = len(order_domains(groups))
    if len(domains) < every:
        return [f"Means over the {len(domains)} of {every} domains that all lines have: {', '.join(domains)}."]
    return ["Means over all domains."] if every > 1 else []


def build_severities(settings: Settings) -> list[Table]:
    """Return the accuracy of the baseline against the severity, where there are several: a line per domain."""
    baselines = [g for s, groups in settings.items() if s.severity for g in groups if g.kind is LineKind.BASELINE]
    tables = []
    for family in split(baselines, lambda one: one.setting.family).values():
        alike = split(family, lambda one: (one.first.method, one.first.images, *one.ground)).values()
        best = [{g.setting.severity: g for g in sorted(m, key=lambda g: -len(g.domains))[::-1]} for m in alike]
        swept = [members for members in best if len(members) > 1]
        named = tell_apart(members[max(members)] for members in swept)
        tables += [_build_severities(members, one.label) for members, one in zip(swept, named, strict=True)]
    return [table for table in tables if table.lines]


def _build_severities(members: dict[int, RunGroup], label: str) -> Table:
    every = list(members.values())
    domains = [d for d in order_domains(every) if sum(d in one.domains for one in every) > 1]
    shared, dropped = share_seeds(every, find_common(every))
    by_severity = dict(sorted(zip(members, shared, strict=True)))
    first = by_severity[max(by_severity)]
    lines = [
        first.make_line([one.cell([domain]) for one in by_severity.values()], label=domain, members=shared)
        for domain in domains
    ]
    title = f"{label[:1].upper()}{label[1:]} accuracy (%)"
    columns = (Column(str(severity), f"severity {severity}", 2, None) for severity in by_severity)
    more: dict[str, Any] = {"corner": "corruption", "notes": tuple(dropped)}
    return first.setting.family.make_table(TableKind.SEVERITIES, title, columns, lines, **more)


def build_variants(settings: Settings) -> list[Table]:
    """Return ImageNet-A, -R, -Sketch and -V2 as columns: a table for every backbone, prompts and order."""
    chosen = {setting: choose_main(groups) for setting, groups in settings.items() if setting.dataset in VARIANTS}
    notes = {setting: note_main(shown, settings[setting]) for setting, shown in chosen.items()}
    return name_apart(_build_by_dataset(TableKind.VARIANTS, "ImageNet variants: accuracy (%)", chosen, VARIANTS, notes))


def build_components(settings: Settings) -> list[Table]:
    """Return the parts of each method that has some: mean accuracy, datasets as columns."""
    found: dict[str, Settings] = {}
    for setting, groups in settings.items():
        for parts in group_parts(groups):
            found.setdefault(label_of(parts[0].first), {})[setting] = add_base(parts, groups)
    tables: list[Table] = []
    for label, members in found.items():
        title = f"The parts of {label}: mean accuracy over the corruptions (%)"
        tables += _build_by_dataset(TableKind.COMPONENTS, title, members)
    return name_apart(tables)


def _build_by_dataset(
    kind: TableKind,
    title: str,
    found: Settings,
    sets: Sequence[str] = (),
    notes: Mapping[Setting, Sequence[str]] | None = None,
) -> list[Table]:
    """Return a table for all settings that differ only in the dataset.

    A line is a configuration, a column a dataset with its mean over the domains; with given ``sets`` the last column
    is the mean over them.
    """
    published = find_published(kind.value)
    tables = []
    for protocol, own in split(found, lambda setting: replace(setting, dataset="")).items():
        shared = {setting.dataset: share_seeds(found[setting]) for setting in own}
        members = {dataset: groups for dataset, (groups, _) in shared.items()}
        lines, covered = _make_dataset_lines(members, sets, published)
        texts = _say_once({dataset: dropped for dataset, (_, dropped) in shared.items()})
        texts += [f"{dataset}: mean over {len(domains)} domains" for dataset, domains in covered.items() if domains[1:]]
        texts += _say_once({dataset: note_differences(groups) for dataset, groups in members.items()})
        texts += _say_once({setting.dataset: notes[setting] for setting in own}) if notes else []
        names = [*sets, AVERAGE] if sets else list(members)
        table = Table(
            kind,
            kind.value,
            f"{title}: {protocol.describe(dataset=False)}",
            tuple(Column(name, shorten(name)) for name in names),
            tuple(lines),
            published=published if any(line.has_published for line in lines) else None,
            notes=tuple(texts),
        )
        tables.append(table)
    return tables


def _make_dataset_lines(
    found: Mapping[str, Sequence[RunGroup]], sets: Sequence[str], published: PublishedTable
) -> tuple[list[Line], dict[str, list[str]]]:
    """Return the lines, and the domains that the mean of each dataset is over."""
    covered = {dataset: find_common(groups) for dataset, groups in found.items()}
    lines = []
    for label, members in _join_datasets(found):
        one = next(iter(members.values()))
        theirs = one.find_published(published)
        differs: list[str] = []
        cells = []
        for dataset in sets or found:
            printed = theirs.value(dataset) if theirs else None
            if dataset not in members:
                cells.append(Cell(published=printed))
                continue
            cells.append(members[dataset].cell(covered[dataset], published=printed))
            if printed is not None:
                differs += members[dataset].list_differences(published, theirs, dataset)
                differs += [] if sets else _compare_domains(covered[dataset])
        if sets:
            values = [cell.value for cell in cells if cell.value is not None]
            mean = sum(values) / len(values) if len(values) == len(cells) else None
            runs = tuple(run for cell in cells for run in cell.runs)
            printed = theirs.value(AVERAGE) if theirs else None
            cells.append(Cell(mean, None, min(cell.seeds for cell in cells), printed, runs))
        lines.append(one.make_line(cells, list(dict.fromkeys(differs)), label, list(members.values())))
    return lines, covered


def _say_once(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return notes on datasets: what holds for all is stated once, the rest with the names."""
    sets: dict[str, list[str]] = {}
    for dataset, own in notes.items():
        for note in own:
            sets.setdefault(note, []).append(dataset)
    return [note if len(found) == len(notes) else f"{', '.join(found)}: {note}" for note, found in sets.items()]


def _join_datasets(found: Mapping[str, Sequence[RunGroup]]) -> list[tuple[str, dict[str, RunGroup]]]:
    """Return label, and dataset -> group, for every line: groups of one label and one model."""
    every = [one for groups in found.values() for one in groups]
    lines = list(split(every, lambda one: (one.label, *one.ground[:2])).values())  # weights and dtype
    named = tell_apart(members[0] for members in lines)
    by_dataset = ({one.setting.dataset: one for one in members} for members in lines)
    return [(one.label, members) for one, members in zip(named, by_dataset, strict=True)]


def _compare_domains(domains: Sequence[str]) -> list[str]:
    """Return a phrase if a mean is over other corruptions than the paper's."""
    count, known = len(domains), len(CORRUPTIONS)
    if set(domains) == set(CORRUPTIONS):
        return []
    return [f"{count} of {known} corruptions" if count < known else f"{count} corruptions (paper: {known})"]
