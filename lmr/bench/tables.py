"""From series to tables in the paper's form, with the published numbers beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lmr.bench.gather import Series, Setting, share_seeds, tell_apart
from lmr.bench.reference import (
    AVERAGE,
    PRESETS,
    PublishedRow,
    PublishedTable,
    find_differences,
    find_published,
    match_corruption_table,
)
from lmr.bench.table import Cell, Column, Line, Table, make_cell
from lmr.core.registry import find_method, list_methods

HEADS = {  # as the paper abbreviates them
    "gaussian_noise": "Gauss.", "shot_noise": "Shot", "impulse_noise": "Impu.", "defocus_blur": "Defo.",
    "glass_blur": "Glas.", "motion_blur": "Moti.", "zoom_blur": "Zoom", "snow": "Snow", "frost": "Fros.", "fog": "Fog",
    "brightness": "Brit.", "contrast": "Cont.", "elastic_transform": "Elas.", "pixelate": "Pixl.",
    "jpeg_compression": "Jpeg", "speckle_noise": "Spec.", "gaussian_blur": "GBlur", "spatter": "Spat.",
    "saturate": "Satu.", AVERAGE: "AVG", "imagenet-a": "IN-A", "imagenet-r": "IN-R", "imagenet-sketch": "IN-S",
    "imagenet-v2": "IN-V2", "cifar10-c": "C10-C", "cifar100-c": "C100-C", "imagenet-c-5000": "IN-C",
}  # fmt: skip
CORRUPTIONS = tuple(HEADS)[:15]
VARIANTS = ("imagenet-a", "imagenet-r", "imagenet-sketch", "imagenet-v2")
MEASURES: dict[str, Column] = {
    key: Column(key, head, digits, higher)
    for key, head, digits, higher in (
        ("accuracy", "accuracy %", 2, True),
        ("clean_accuracy", "clean afterwards %", 2, True),
        ("ece", "ECE %", 2, False),
        ("nll", "NLL", 3, False),
        ("classes_predicted", "classes predicted %", 1, None),
        ("effective_classes", "effective classes", 1, None),
        ("top_share", "top class %", 2, None),
        ("late_top_share", "top class late %", 2, None),
        ("gate_share", "gate open %", 1, None),
        ("protected_size", "protected classes", 2, None),
        ("drift", "norm drift", 3, None),
        ("ms_per_image", "ms/image", 2, False),
        ("peak_mb", "peak MB", 1, False),
        ("trainable", "trained numbers", 0, None),
    )
}
COSTS = ("ms_per_image", "peak_mb", "trainable")


def choose_main(series: Sequence[Series]) -> list[Series]:
    """The series of the main table: no switched-off parts, no sweeps, one run per configuration, in order."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        if not one.is_part and one.sweep is None:
            groups.setdefault(one.first.spec, []).append(one)
    chosen = [max(group, key=_weigh) for group in groups.values()]
    return tell_apart(sorted(chosen, key=_place))


def _weigh(series: Series) -> tuple[int, int, bool, int]:
    """Of several runs of one configuration the table has the one with most domains, most images, its own batch size."""
    row = series.first
    return len(series.domains), row.images, row.batch_size == _usual_batch(series), row.batch_size


def _usual_batch(series: Series) -> int | None:
    """The batch size that the method's values for this dataset were chosen for."""
    name = series.first.method
    presets = find_method(name).presets if name in list_methods() else {}
    preset = presets.get(PRESETS.get(series.setting.dataset, "default")) or presets.get("default")
    return preset.batch_size if preset else None


def _place(series: Series) -> tuple[int, str]:
    """The paper's order of methods; others stand before LMR, which is last."""
    order = [row.method for row in find_published("cifar10-c").rows]
    name = series.first.method
    return (order.index(name) * 2 if name in order else 2 * len(order) - 3), series.label


def with_base(chosen: Sequence[Series], series: Sequence[Series]) -> list[Series]:
    """Series that vary LMR, with zero-shot and the LMR they vary beside them: same batch size and images."""
    like = chosen[0].first
    zero = sorted(
        (s for s in series if s.first.method == "zeroshot" and s.first.images == like.images),
        key=lambda s: -len(s.domains),
    )
    full = [s for s in series if s.first.method == "lmr" and not s.changes and s.first.images == like.images
            and s.first.batch_size == like.batch_size]  # fmt: skip
    table = find_published("ablation-components")

    def place(one: Series) -> int:
        row = table.find(one.first.spec)
        return table.rows.index(row) if row else len(table.rows)

    return tell_apart([*zero[:1], *sorted(chosen, key=place), *full[:1]])


def build_corruptions(
    setting: Setting,
    series: Sequence[Series],
    published: PublishedTable | None = None,
    kind: str = "",
    notes: Sequence[str] = (),
) -> Table | None:
    """Accuracies on every domain and their average."""
    if not series:
        return None
    series, seeds = share_seeds(series)
    domains = order_domains(series)
    if published is None and not kind:
        published = match_corruption_table(setting.dataset, setting.backbone, setting.prompts)
    columns = tuple(Column(d, HEADS.get(d, d)) for d in [*domains, *([AVERAGE] if len(domains) > 1 else [])])
    lines = [_make_line(one, columns, domains, published) for one in series]
    what = "The parts of LMR, accuracy (%)" if kind == "parts" else "Accuracy (%)"
    notes = [*notes, *seeds]
    if not published and not kind:
        notes.append(f"The paper has no numbers for {setting.dataset}; none stand beside these.")
    if len(counts := {one.first.images for one in series}) > 1:
        notes.append(f"The lines differ in their images per domain: {', '.join(map(str, sorted(counts)))}.")
    return Table(
        make_name(kind or "accuracy", setting),
        f"{what}: {setting.describe()}",
        columns,
        tuple(lines),
        published=cite(published),
        notes=tuple(notes),
    )


def order_domains(series: Sequence[Series]) -> list[str]:
    """The domains of the series: the benchmark's in its order, then others."""
    found = {domain: None for one in series for domain in one.domains}
    known = [domain for domain in CORRUPTIONS if domain in found]
    return known + [domain for domain in found if domain not in known]


def _make_line(
    one: Series, columns: Sequence[Column], domains: Sequence[str], published: PublishedTable | None
) -> Line:
    theirs = published.find(one.first.spec) if published else None
    cells = []
    for column in columns:
        about = domains if column.key == AVERAGE else [column.key]
        beside = theirs.value(column.key) if theirs and (column.key != AVERAGE or len(about) == 15) else None
        cells.append(make_cell(one.average(about), beside, list_runs(one, about)))
    return finish_line(one, cells, list_differences([one], published, theirs))


def finish_line(one: Series, cells: Sequence[Cell], differs: Sequence[str] = (), label: str = "") -> Line:
    """A line with the protocol and the command of its first run."""
    row = one.first
    protocol = {
        "method": row.spec,
        "backbone": ", ".join(f"{key} {value}" for key, value in row.backbone.items()),
        "dataset": row.dataset,
        "severity": str(row.severity),
        "prompts": f"{row.prompts.get('name')} ({row.prompts.get('count')} sentences)",
        "batch size": str(row.batch_size),
        "images": str(row.images),
        "order": f"{row.order_words}, seeds {', '.join(map(str, one.seeds))}",
        "reset": row.reset,
        "answers": f"{row.emit} the batch's own update",
    }
    ours = row.method == "lmr" and not one.changes
    return Line(label or one.label, tuple(cells), tuple(differs), tuple(protocol.items()), row.command, ours)


def list_differences(
    series: Iterable[Series], table: PublishedTable | None, row: PublishedRow | None, column: str | None = None
) -> list[str]:
    """Where the protocol of any run differs from the published one; each difference once."""
    if table is None or row is None:
        return []
    found = (text for one in series for run in one.rows for text in find_differences(run, table, row, column))
    return list(dict.fromkeys(found))


def list_runs(one: Series, domains: Iterable[str]) -> tuple[str, ...]:
    """The runs behind a cell."""
    rows = (one.find(domain, seed) for domain in domains for seed in one.seeds)
    return tuple(dict.fromkeys(row.run for row in rows if row is not None))


def build_measures(setting: Setting, series: Sequence[Series]) -> Table | None:
    """Everything else that was measured, averaged over the domains."""
    domains = order_domains(series)
    return _build_metrics(setting, series, domains, tuple(MEASURES.values()), "measures", "What else was measured")


def build_costs(setting: Setting, series: Sequence[Series]) -> Table | None:
    """Cost of single images, as the paper's table of efficiency: only where a method was made to take one at a time."""
    single = [s for s in series if s.first.batch_size == 1 and not s.changes]
    counts = [s.first.images for s in single]
    single = [s for s in single if s.first.images == max(counts, key=counts.count)]
    if len(single) < 2 or not any(_usual_batch(s) != 1 for s in single):
        return None
    published = find_published("efficiency") if setting.dataset == "imagenet-c-5000" else None
    columns = tuple(MEASURES[key] for key in COSTS)
    ordered = tell_apart(sorted(single, key=_place))
    return _build_metrics(
        setting, ordered, order_domains(single), columns, "efficiency", "Cost of single images", published
    )


def _build_metrics(
    setting: Setting,
    series: Sequence[Series],
    domains: Sequence[str],
    columns: Sequence[Column],
    name: str,
    what: str,
    published: PublishedTable | None = None,
) -> Table | None:
    lines = []
    series, seeds = share_seeds(series)
    for one in series:
        theirs = published.find(one.first.spec) if published else None
        cells = []
        for column in columns:
            known = [domain for domain in domains if one.collect(domain, column.key)]
            beside = theirs.value(column.key) if theirs else None
            cells.append(make_cell(one.average(known, column.key), beside, list_runs(one, known)))
        lines.append(finish_line(one, cells, list_differences([one], published, theirs)))
    kept = [j for j in range(len(columns)) if any(line.cells[j].value is not None for line in lines)]
    if not kept:
        return None
    return Table(
        make_name(name, setting),
        f"{what}: {setting.describe()}",
        tuple(columns[j] for j in kept),
        tuple(replace(line, cells=tuple(line.cells[j] for j in kept)) for line in lines),
        published=cite(published),
        notes=(*seeds, *(["Means over the domains."] if len(domains) > 1 else [])),
    )


def cite(published: PublishedTable | None) -> str:
    """Where published numbers are from."""
    return f"the paper's table {published.source} ({published.title})" if published else ""


def make_name(kind: str, setting: Setting) -> str:
    """A name for a table's files: what it is about, in letters that every system takes."""
    parts = [kind, setting.dataset, setting.backbone, setting.prompts if "{" not in setting.prompts else ""]
    parts += [
        f"s{setting.severity}",
        setting.reset if setting.reset != "domain" else "",
        setting.order.replace("shuffle", ""),
    ]
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(filter(None, parts))).strip("-").lower()


def build_severities(settings: dict[Setting, list[Series]]) -> list[Table]:
    """Zero-shot accuracy against the severity, where there are several: one line per domain."""
    families: dict[tuple[str, ...], dict[int, Series]] = {}
    for setting, series in settings.items():
        for one in series:
            if one.first.method == "zeroshot" and setting.severity:
                families.setdefault((*setting.family, str(one.first.images)), {})[setting.severity] = one
    tables = []
    for members in families.values():
        if len(members) < 2:
            continue
        shared = [d for d in order_domains(list(members.values())) if sum(d in s.domains for s in members.values()) > 1]
        kept, seeds = share_seeds(
            list(members.values()), [d for d in shared if all(d in s.domains for s in members.values())]
        )
        members = dict(zip(members, kept, strict=True))
        first = members[max(members)]
        lines = []
        for domain in shared:
            pairs = [(members[s].collect(domain), list_runs(members[s], [domain])) for s in sorted(members)]
            lines.append(finish_line(first, [make_cell(values, None, found) for values, found in pairs], label=domain))
        setting = replace(first.setting, severity=0)
        columns = tuple(Column(str(s), f"severity {s}", 2, None) for s in sorted(members))
        name, title = make_name("severities", setting), f"Zero-shot accuracy (%): {setting.describe()}"
        tables.append(Table(name, title, columns, tuple(lines), "corruption", notes=tuple(seeds)))
    return tables
