"""The layouts of a report's tables: accuracy, measures, costs, datasets, parts of methods and sweeps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from lmr.core.card import Role
from lmr.report.groups import (
    RunGroup,
    Setting,
    Settings,
    add_base,
    choose_main,
    complete,
    find_common,
    note_batches,
    order_domains,
    share_seeds,
    split,
    tell_apart,
)
from lmr.report.protocol import match_corruption_table
from lmr.report.published import AVERAGE, COMPONENTS, VARIANTS, PublishedTable, find_published, read_paper, shorten
from lmr.report.table import Column, Layout
from lmr.report.traits import LineKind, expand_spec, find_card, label_of

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


def lay_accuracy(setting: Setting, groups: Sequence[RunGroup], paper: PublishedTable | None = None) -> Layout:
    """Return the accuracy on every domain and the average, next to the published numbers on the same data.

    ``paper`` is a table to compare with even if it is about other data.
    """
    paper = paper or match_corruption_table(setting.dataset, setting.backbone, setting.prompts)
    lines, dropped = share_seeds(groups)
    domains = order_domains(lines)
    shown = {domain: [domain] for domain in domains} | ({AVERAGE: domains} if len(domains) > 1 else {})
    columns = [Column(key, shorten(key)) for key in shown]
    entries = {(n, key): one.enter(own) for n, one in enumerate(lines) for key, own in shown.items()}
    notes = *dropped, *note_batches(lines)
    return Layout("accuracy", "Accuracy (%)", setting, lines, columns, entries, published=paper, notes=notes)


def lay_measures(setting: Setting, groups: Sequence[RunGroup], measures: Sequence[Column] = MEASURES) -> Layout:
    """Return what was measured, averaged over the domains that all lines have."""
    domains = find_common(groups)
    lines, dropped = share_seeds(groups, domains)
    columns = [c for c in measures if domains and any(one.frame[c.key].notna().any() for one in lines)]
    entries = {(n, c.key): one.enter(domains, c.key) for n, one in enumerate(lines) for c in columns}
    notes = *dropped, f"Domains: {', '.join(domains)}."
    return Layout("measures", "All measures", setting, lines, columns, entries, notes=notes)


def lay_costs(setting: Setting, groups: Sequence[RunGroup]) -> list[Layout]:
    """Return the cost of single images, as in the paper's table of efficiency, if batches of one image were run.

    Methods whose own batch size is 1 are not enough: their accuracy runs do not measure the cost.
    """
    single = [one for one in groups if one.key.batch_size == 1 and not one.changes]
    if len(single) < 2 or not any(one.usual_batch != 1 for one in single):
        return []
    paper = find_published("efficiency") if setting.dataset == "imagenet-c-5000" else None
    measured = lay_measures(setting, choose_main(single), COSTS)
    return [replace(measured, kind="efficiency", title="Cost of single images", published=paper)]


def lay_variants(settings: Settings) -> list[Layout]:
    """Return ImageNet-A, -R, -Sketch and -V2 as columns: a table for every backbone, prompts and order."""
    chosen = {setting: choose_main(groups) for setting, groups in settings.items() if setting.dataset in VARIANTS}
    return _lay_by_dataset("imagenet-variants", "ImageNet variants: accuracy (%)", chosen, VARIANTS)


def lay_components(settings: Settings) -> list[Layout]:
    """Return the parts of each method that has some: mean accuracy, datasets as columns."""
    found: dict[str, Settings] = {}
    for setting, groups in settings.items():
        parts = split((one for one in groups if one.kind is LineKind.PART), lambda one: label_of(one.first))
        for label, own in parts.items():
            found.setdefault(label, {})[setting] = add_base(own, groups)
    title = "The parts of {}: mean accuracy over the corruptions (%)"
    return [own for label, parts in found.items() for own in _lay_by_dataset(COMPONENTS, title.format(label), parts)]


def _lay_by_dataset(kind: str, title: str, found: Settings, sets: Sequence[str] = ()) -> list[Layout]:
    """Return a layout for all settings that differ only in the data: its columns, each the mean over its domains.

    With given ``sets`` only they are columns, and the last one is the mean over them.
    """
    layouts = []
    for protocol, members in split(found, lambda setting: setting.keep("severity", "order", "stream")).items():
        entries, notes, lines = dict[tuple[int, str], pd.DataFrame](), list[str](), dict[str, RunGroup]()
        shown: dict[str, Setting] = {}
        for setting in members:
            count = sum(other.dataset == setting.dataset for other in shown.values())
            key = f"{setting.dataset} ({count + 1})" if count else setting.dataset
            shown[key] = setting
            groups, dropped = share_seeds(found[setting])
            domains = find_common(groups)
            for one in groups:
                lines.setdefault(one.label, one)
                entries[list(lines).index(one.label), key] = one.enter(domains)
            notes += [f"{key}: {text}" for text in (*dropped, *([f"{setting.describe()}."] if count else []))]
        for n in range(len(lines) if sets else 0):
            each = [entries[n, name].assign(stream=name) for name in sets if (n, name) in entries]
            entries[n, AVERAGE] = complete(pd.concat(each), len(sets))
        columns = [Column(key, shorten(key)) for key in ((*sets, AVERAGE) if sets else shown)]
        paper = find_published(kind)
        layouts.append(
            Layout(kind, title, protocol, list(lines.values()), columns, entries, published=paper, notes=notes)
        )
    return layouts


def lay_sweeps(settings: Settings) -> list[Layout]:
    """Return every sweep in the runs: over the batch size, and over the arguments that methods declare."""
    layouts = []
    for setting, groups in settings.items():
        whole = [one for one in groups if one.kind is not LineKind.PART and one.frame["accuracy"].notna().any()]
        methods = dict.fromkeys(one.first.method for one in whole)
        swept = [(method, name, keys) for method in methods for name, keys in find_card(method).swept.items()]
        layouts += _lay_sweep(setting, BATCH_SIZE, "batch size", "method", _sweep_batch_size(whole))
        for method, name, (key, *others) in swept:
            title = f"{key} of {find_card(method).label}"
            lines = _sweep_argument(whole, method, name, key, others)
            layouts += _lay_sweep(setting, name, title, ", ".join(others) or "dataset", lines)
    return layouts


def _lay_sweep(
    setting: Setting, name: str, title: str, corner: str, found: dict[str, dict[float, RunGroup]]
) -> list[Layout]:
    """Return a line for each label and a column for each value; its role is that of the unchanged method on it."""
    members = [one for line in found.values() for one in line.values()]
    domains = find_common(members)
    shared, dropped = share_seeds(members, domains)
    if not domains or all(len(line) < 2 for line in found.values()):
        return []
    rest, lines, entries = iter(shared), [], dict[tuple[int, str], pd.DataFrame]()
    for number, (label, line) in enumerate(found.items()):
        steps = dict(zip(line, rest, strict=False))
        first = next((one for one in steps.values() if one.kind is not LineKind.STEP), next(iter(steps.values())))
        lines.append(replace(first, label=label))
        entries |= {(number, f"{value:g}"): one.enter(domains) for value, one in steps.items()}
    columns = [Column(f"{v:g}", f"{v:g}") for v in sorted({value for line in found.values() for value in line})]
    notes, title = (f"Domains: {', '.join(domains)}.", *dropped), f"Accuracy (%) against the {title}"
    return [Layout("sweep", title, setting, lines, columns, entries, corner=corner, detail=name, notes=notes)]


def find_figure(sweep: Layout) -> dict[str, Any] | None:
    """Return the paper's figure of a sweep, with its number; None for other methods and too few batch sizes."""
    if sweep.detail == BATCH_SIZE:
        sizes = [number for number, _ in sweep.entries]
        drawn = max(map(sizes.count, sizes)) >= FEWEST_SIZES
    else:
        drawn = find_card(sweep.lines[0].first.method).role is Role.OURS
    figures = read_paper()["figures"].items() if drawn else ()
    return next(({"number": n, **figure} for n, figure in figures if figure.get("sweep") == sweep.detail), None)


def _sweep_batch_size(groups: Iterable[RunGroup]) -> dict[str, dict[float, RunGroup]]:
    """Return a line for everything that was run with more than one batch size; two are too few beside more."""
    own = (one for one in groups if one.kind is not LineKind.STEP)
    alike = split(own, lambda one: one.key._replace(batch_size=0)).values()
    found = [dict(sorted((float(one.key.batch_size), one) for one in members)) for members in alike]
    most = max(map(len, found), default=0)
    swept = [line for line in found if len(line) >= min(most, FEWEST_SIZES) and len(line) > 1]
    labels = tell_apart(next(iter(line.values())) for line in swept)
    return {one.label: line for one, line in zip(labels, swept, strict=True)}


def _sweep_argument(
    groups: Collection[RunGroup], method: str, name: str, swept: str, others: Sequence[str]
) -> dict[str, dict[float, RunGroup]]:
    """Return a line for each value of the other arguments, or one; the unchanged method is one step.

    Of several batch sizes, numbers of images and so on the one with most values is taken.
    """
    own = [one for one in groups if one.first.method == method and (one.sweep == name or not one.changes)]
    varied = split(own, lambda one: one.key._replace(spec="")).values()
    lines: dict[str, dict[float, RunGroup]] = {}
    for one in max((v for v in varied if any(one.sweep == name for one in v)), key=len, default=[]):
        values = expand_spec(one.first.spec)
        if isinstance(values[swept], bool) or not isinstance(values[swept], int | float):
            return {}  # it has no axis
        label = ", ".join(str(values[key]) for key in others) or one.setting.dataset
        lines.setdefault(label, {})[float(values[swept])] = one
    return {label: dict(sorted(line.items())) for label, line in lines.items()}
