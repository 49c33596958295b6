"""The tables of a report: accuracy, parts of methods, measures, costs, datasets and sweeps, each a pivot of groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmr.core.card import Role
from lmr.data.corruptions import CORRUPTIONS
from lmr.report.groups import (
    RunGroup,
    Setting,
    Settings,
    add_base,
    choose_main,
    find_common,
    name_seeds,
    note_differences,
    order_domains,
    share_seeds,
    split,
    tell_apart,
)
from lmr.report.protocol import match_corruption_table
from lmr.report.published import AVERAGE, VARIANTS, PublishedTable, find_published, read_paper, shorten
from lmr.report.table import Cell, Column, Line, Table, fill, name_apart, pivot
from lmr.report.traits import LineKind, expand_spec, find_card, label_of, role_of

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
COSTS = tuple(column for column in MEASURES if column.key in ("ms_per_image", "peak_mb", "trainable"))
BATCH_SIZE = "batch-size"  # the sweep of all methods
FEWEST_SIZES = 3  # batch sizes that make a line of a sweep; two only compare a published size with another one


def _make_lines(
    groups: Sequence[RunGroup], shown: Mapping[Column, tuple[Sequence[str], str]], published: PublishedTable | None
) -> list[Line]:
    """Return a line per group: each column is a metric, averaged over some domains."""
    entries = {
        (number, column.key): one.enter(domains, metric)
        for number, one in enumerate(groups)
        for column, (domains, metric) in shown.items()
    }
    cells = pivot(entries)
    lines = []
    for number, one in enumerate(groups):
        theirs = one.find_published(published)
        own = []
        for cell, (column, (domains, _)) in zip(fill(cells, number, list(shown)), shown.items(), strict=True):
            comparable = column.key != AVERAGE or len(domains) == PAPER_COLUMNS
            own.append(replace(cell, published=theirs.value(column.key) if theirs and comparable else None))
        lines.append(one.make_line(own, one.list_differences(published, theirs)))
    return lines


def build_accuracy(
    setting: Setting, groups: Sequence[RunGroup], published: PublishedTable | None = None, detail: str = ""
) -> Table | None:
    """Return the accuracy on every domain and the average, next to the published numbers on the same data.

    ``published`` is a table to compare with even if it is about other data.
    """
    published = published or match_corruption_table(setting.dataset, setting.backbone, setting.prompts)
    return _build_by_domain("accuracy", "Accuracy (%)", setting, groups, published, detail)


def build_parts(setting: Setting, groups: Sequence[RunGroup]) -> list[Table]:
    """Return a table for every method that was run with parts switched off."""
    tables = [
        _build_by_domain("parts", f"The parts of {label}, accuracy (%)", setting, add_base(parts, groups))
        for label, parts in group_parts(groups).items()
    ]
    return [table for table in tables if table]


def group_parts(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """Return the groups with parts switched off, by the label of their method."""
    return split((one for one in groups if one.kind is LineKind.PART), lambda one: label_of(one.first))


def _build_by_domain(
    kind: str,
    title: str,
    setting: Setting,
    groups: Sequence[RunGroup],
    published: PublishedTable | None = None,
    detail: str = "",
) -> Table | None:
    if not groups:
        return None
    shared, dropped = share_seeds(groups)
    domains = order_domains(shared)
    shown: dict[Column, tuple[Sequence[str], str]] = {
        Column(domain, shorten(domain)): ([domain], "accuracy") for domain in domains
    }
    if len(domains) > 1:
        shown[Column(AVERAGE, shorten(AVERAGE))] = domains, "accuracy"
    lines, notes = _make_lines(shared, shown, published), (*dropped, *note_differences(shared))
    return setting.make_table(kind, title, shown, lines, detail, published=published, notes=notes)


def build_measures(
    setting: Setting,
    groups: Sequence[RunGroup],
    detail: str = "",
    columns: Sequence[Column] = MEASURES,
    published: PublishedTable | None = None,
) -> Table | None:
    """Return everything that was measured, averaged over the domains that all lines have."""
    domains = find_common(groups)
    shared, dropped = share_seeds(groups, domains)
    measured = [column for column in columns if any(one.frame[column.key].notna().any() for one in shared)]
    if not domains or not measured:
        return None
    lines = _make_lines(shared, {column: (domains, column.key) for column in measured}, published)
    notes = (*dropped, f"Domains: {', '.join(domains)}.", *note_differences(shared))
    kind, title = ("measures", "All measures") if columns is MEASURES else ("efficiency", "Cost of single images")
    return setting.make_table(kind, title, measured, lines, detail, published=published, notes=notes)


def build_costs(setting: Setting, groups: Sequence[RunGroup]) -> Table | None:
    """Return the cost of single images, as in the paper's table of efficiency, if batches of one image were run.

    Methods whose own batch size is 1 are not enough: their accuracy runs do not measure the cost.
    """
    single = [one for one in groups if one.first.batch_size == 1 and not one.changes]
    if len(single) < 2 or not any(one.usual_batch != 1 for one in single):
        return None
    published = find_published("efficiency") if setting.dataset == "imagenet-c-5000" else None
    return build_measures(setting, choose_main(single), "", COSTS, published)


def build_variants(settings: Settings) -> list[Table]:
    """Return ImageNet-A, -R, -Sketch and -V2 as columns: a table for every backbone, prompts and order."""
    chosen = {
        setting: choose_main(split_lengths(groups)[0])
        for setting, groups in settings.items()
        if setting.dataset in VARIANTS
    }
    return _build_by_dataset("imagenet-variants", "ImageNet variants: accuracy (%)", chosen, VARIANTS)


def build_components(settings: Settings) -> list[Table]:
    """Return the parts of each method that has some: mean accuracy, datasets as columns."""
    found: dict[str, Settings] = {}
    for setting, groups in settings.items():
        for label, parts in group_parts(groups).items():
            found.setdefault(label, {})[setting] = add_base(parts, groups)
    titles = {label: f"The parts of {label}: mean accuracy over the corruptions (%)" for label in found}
    return [table for label, own in found.items() for table in _build_by_dataset(COMPONENTS, titles[label], own)]


COMPONENTS = "ablation-components"


def split_lengths(groups: Sequence[RunGroup]) -> list[list[RunGroup]]:
    """Return groups with the same number of images together: whole natural domains, then the largest number first."""
    found = split(groups, lambda one: one.length)
    return [found[length] for length in sorted(found, key=lambda length: -length if length else -float("inf"))]


def _build_by_dataset(kind: str, title: str, found: Settings, sets: Sequence[str] = ()) -> list[Table]:
    """Return a table for all settings that differ only in the dataset.

    A line is a configuration, a column a dataset with its mean over the domains; with given ``sets`` the last column
    is the mean over them.
    """
    published = find_published(kind)
    tables = []
    for protocol, own in split(found, lambda setting: replace(setting, dataset="")).items():
        shared = {setting.dataset: share_seeds(found[setting]) for setting in own}
        members = {dataset: groups for dataset, (groups, _) in shared.items()}
        lines = _make_dataset_lines(members, sets, published)
        notes = [f"{dataset}: {note}" for dataset, (_, dropped) in shared.items() for note in dropped]
        notes += [f"{dataset}: {note}" for dataset, groups in members.items() for note in note_differences(groups)]
        columns = tuple(Column(name, shorten(name)) for name in ([*sets, AVERAGE] if sets else members))
        compared = published if any(cell.published is not None for line in lines for cell in line.cells) else None
        heading = f"{title}: {protocol.describe(dataset=False)}"
        tables.append(Table(kind, heading, columns, tuple(lines), published=compared, notes=tuple(notes)))
    return name_apart(tables)


def _make_dataset_lines(
    found: Mapping[str, Sequence[RunGroup]], sets: Sequence[str], published: PublishedTable
) -> list[Line]:
    covered = {dataset: find_common(groups) for dataset, groups in found.items()}
    every = [one for groups in found.values() for one in groups]
    joined = list(split(every, lambda one: (one.label, *one.ground[:2])).values())  # weights and dtype
    firsts = tell_apart(members[0] for members in joined)
    datasets = {
        (number, one.setting.dataset): one.enter(covered[one.setting.dataset])
        for number, members in enumerate(joined)
        for one in members
    }
    cells = pivot(datasets)
    lines = []
    for number, (first, members) in enumerate(zip(firsts, joined, strict=True)):
        theirs = first.find_published(published)
        printed = {dataset: theirs.value(dataset) if theirs else None for dataset in sets or found}
        own = [replace(cells.get((number, dataset), Cell()), published=value) for dataset, value in printed.items()]
        differs: list[str] = []
        for one in members:
            if printed[one.setting.dataset] is not None:
                differs += one.list_differences(published, theirs, one.setting.dataset)
                differs += [] if sets else _compare_domains(covered[one.setting.dataset])
        if sets:
            values = [cell.value for cell in own if cell.value is not None]
            mean = sum(values) / len(values) if len(values) == len(own) else None
            runs = tuple(run for cell in own for run in cell.runs)
            own.append(
                Cell(mean, None, min(cell.seeds for cell in own), theirs.value(AVERAGE) if theirs else None, runs)
            )
        lines.append(first.make_line(own, list(dict.fromkeys(differs))))
    return lines


def _compare_domains(domains: Collection[str]) -> list[str]:
    """Return a phrase if a mean is over other corruptions than the paper's."""
    return [] if set(domains) == set(CORRUPTIONS) else [f"{len(domains)} corruptions (paper: {len(CORRUPTIONS)})"]


@dataclass(frozen=True)
class Sweep:
    """The groups of a sweep by line and value, and the domains that all of them have."""

    name: str  # the batch size, or one that a method declares
    arguments: tuple[str, ...]  # that change: the first along a line; further ones separate the lines
    setting: Setting
    lines: dict[str, dict[float, RunGroup]]
    domains: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[RunGroup]:
        """All groups in it."""
        return [one for line in self.lines.values() for one in line.values()]

    @property
    def figure(self) -> dict[str, Any] | None:
        """The paper's figure of this sweep, with its number; None for other methods and too few batch sizes."""
        if self.name == BATCH_SIZE:
            drawn = max(map(len, self.lines.values())) >= FEWEST_SIZES
        else:
            drawn = role_of(self.groups[0].first) is Role.OURS
        figures = read_paper()["figures"].items() if drawn else ()
        return next(({"number": n, **figure} for n, figure in figures if figure.get("sweep") == self.name), None)

    def describe(self) -> str:
        """Return where the numbers are from, for a caption."""
        counts = " or ".join(str(count) for count in sorted({one.first.images for one in self.groups}))
        seeds = name_seeds(seed for one in self.groups for seed in one.seeds)
        domains = ", ".join(self.domains) if len(self.domains) < 4 else f"mean of {len(self.domains)} domains"
        return f"{self.setting.describe()}, {domains}, {counts} images each, {seeds}"

    def build(self) -> Table:
        """Return a table with a line per method (or dataset, or value of a further argument) and a column per value."""
        values = sorted({value for line in self.lines.values() for value in line})
        columns = [Column(f"{value:g}", f"{value:g}") for value in values]
        entries = {
            (number, f"{value:g}"): one.enter(self.domains)
            for number, line in enumerate(self.lines.values())
            for value, one in line.items()
        }
        cells = pivot(entries)
        lines = []
        for number, (label, line) in enumerate(self.lines.items()):
            members = list(line.values())
            made = members[0].make_line(fill(cells, number, columns), label=label)
            lines.append(replace(made, kind=find_line_kind(line)))
        title = "batch size" if self.name == BATCH_SIZE else f"{self.arguments[0]} of {label_of(self.groups[0].first)}"
        corner = "method" if self.name == BATCH_SIZE else ", ".join(self.arguments[1:]) or "dataset"
        notes = (f"Domains: {', '.join(self.domains)}.", *self.notes)
        heading = f"Accuracy (%) against the {title}"
        return self.setting.make_table("sweep", heading, columns, lines, self.name, corner=corner, notes=notes)


def find_line_kind(line: Mapping[float, RunGroup]) -> LineKind:
    """Return the role of a line of a sweep: that of the unchanged method, if it is one of its steps."""
    return next((one.kind for one in line.values() if one.kind is not LineKind.STEP), LineKind.OTHER)


def find_sweeps(settings: Settings) -> list[Sweep]:
    """Return every sweep in the runs: over the batch size, and over the arguments that methods declare."""
    found = []
    for setting, groups in settings.items():
        whole = [one for one in groups if one.kind is not LineKind.PART and one.frame["accuracy"].notna().any()]
        axes: list[tuple[str, str, tuple[str, ...]]] = [(BATCH_SIZE, "", ())]
        for method in dict.fromkeys(one.first.method for one in whole):
            axes += [(name, method, keys) for name, keys in find_card(method).swept.items()]
        for name, method, keys in axes:
            lines = _sweep_argument(whole, name, method, keys) if method else _sweep_batch_size(whole)
            members = [one for line in lines.values() for one in line.values()]
            if common := find_common(members):
                shared, dropped = share_seeds(members, common)
                same = dict(zip(map(id, members), shared, strict=True))
                lines = {label: {value: same[id(one)] for value, one in line.items()} for label, line in lines.items()}
                found.append(Sweep(name, keys, setting, lines, tuple(common), tuple(dropped)))
    return found


def _sweep_batch_size(groups: Iterable[RunGroup]) -> dict[str, dict[float, RunGroup]]:
    """Return a line for everything that was run with more than one batch size; two are too few beside more."""
    own = (one for one in groups if one.kind is not LineKind.STEP)
    alike = split(own, lambda one: (*one.configuration, one.first.images, one.first.emit, *one.ground)).values()
    found: list[dict[float, RunGroup]] = [{one.first.batch_size: one for one in members} for members in alike]
    most = max(map(len, found), default=0)
    swept = [members for members in found if len(members) >= min(most, FEWEST_SIZES) and len(members) > 1]
    labels = tell_apart(next(iter(members.values())) for members in swept)
    return {one.label: dict(sorted(members.items())) for one, members in zip(labels, swept, strict=True)}


def _sweep_argument(
    groups: Iterable[RunGroup], name: str, method: str, arguments: Sequence[str]
) -> dict[str, dict[float, RunGroup]]:
    """Return a line for each value of the further arguments, or one; the unchanged method is one step.

    Of several batch sizes, numbers of images and so on the one with most values is taken.
    """
    own = [one for one in groups if one.first.method == method and (one.sweep == name or not one.changes)]
    found = split(own, lambda g: (g.watch, g.first.batch_size, g.first.images, g.first.emit, *g.ground))
    varied = [members for members in found.values() if any(one.sweep == name for one in members)]
    swept, *others = arguments
    lines: dict[str, dict[float, RunGroup]] = {}
    for one in max(varied, key=len, default=[]):
        values = expand_spec(one.first.spec)
        if isinstance(values[swept], bool) or not isinstance(values[swept], int | float):
            return {}  # it has no axis
        label = ", ".join(str(values[key]) for key in others) or one.setting.dataset
        lines.setdefault(label, {})[float(values[swept])] = one
    lines = {label: dict(sorted(line.items())) for label, line in lines.items()}
    return lines if any(len(line) > 1 for line in lines.values()) else {}
