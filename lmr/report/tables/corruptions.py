"""From series to tables in the paper's form, with the published numbers beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from lmr.bench.running.row import Row
from lmr.core.registry import find_method, list_methods
from lmr.report.paper.published import (
    AVERAGE,
    PRESETS,
    PublishedRow,
    PublishedTable,
    find_differences,
    find_published,
    match_corruption_table,
)
from lmr.report.series import Series, Setting, share_seeds, sort_domains
from lmr.report.tables.distinction import note_differences, note_left_out, tell_apart
from lmr.report.tables.table import Cell, Column, Line, Table, make_cell

HEADS = {  # as the paper abbreviates them
    "gaussian_noise": "Gauss.", "shot_noise": "Shot", "impulse_noise": "Impu.", "defocus_blur": "Defo.",
    "glass_blur": "Glas.", "motion_blur": "Moti.", "zoom_blur": "Zoom", "snow": "Snow", "frost": "Fros.", "fog": "Fog",
    "brightness": "Brit.", "contrast": "Cont.", "elastic_transform": "Elas.", "pixelate": "Pixl.",
    "jpeg_compression": "Jpeg", "speckle_noise": "Spec.", "gaussian_blur": "GBlur", "spatter": "Spat.",
    "saturate": "Satu.", AVERAGE: "AVG", "imagenet-a": "IN-A", "imagenet-r": "IN-R", "imagenet-sketch": "IN-S",
    "imagenet-v2": "IN-V2", "cifar10-c": "C10-C", "cifar100-c": "C100-C", "imagenet-c-5000": "IN-C",
}  # fmt: skip
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
    """The series of the main table in order: no switched-off parts, no sweeps, one batch size per configuration.

    Of several numbers of images the largest is shown, and any that another line has for its largest: like with like.
    """
    groups: dict[tuple[Any, ...], list[Series]] = {}
    for one in sorted(filter(_is_main, series), key=_weigh):
        groups.setdefault((one.first.spec, one.first.emit, *one.ground), []).append(one)
    counts = {group[-1].first.images for group in groups.values()}
    chosen = [
        one for group in groups.values() for count, one in {s.first.images: s for s in group}.items() if count in counts
    ]
    return tell_apart(sorted(chosen, key=_place))


def note_main(shown: Sequence[Series], series: Sequence[Series]) -> list[str]:
    """What might stand in the main table and does not."""
    return note_left_out(shown, [one for one in series if _is_main(one)])


def _is_main(one: Series) -> bool:
    return not one.is_part and one.sweep is None


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
    """Series that vary LMR, with zero-shot and the LMR they vary beside them: same batch size, images and the rest."""
    plain: dict[tuple[Any, ...], Series] = {}
    for one in sorted(series, key=lambda s: -len(s.domains)):
        if one.first.method == "zeroshot":
            plain.setdefault((one.first.images, *one.ground), one)
    zero = [plain[key] for key in dict.fromkeys((s.first.images, *s.ground) for s in chosen) if key in plain]
    contexts = {(s.first.images, s.first.batch_size, *s.ground) for s in chosen}
    full = [s for s in series if s.first.method == "lmr" and not s.changes
            and (s.first.images, s.first.batch_size, *s.ground) in contexts]  # fmt: skip
    table = find_published("ablation-components")

    def place(one: Series) -> int:
        row = table.find(one.first.spec)
        return table.rows.index(row) if row else len(table.rows)

    return tell_apart([*zero, *sorted(chosen, key=place), *full])


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
    notes += note_differences(series)
    return Table(
        make_name(kind or "accuracy", setting),
        f"{what}: {setting.describe()}",
        columns,
        tuple(lines),
        published=cite(published),
        notes=tuple(notes),
    )


def order_domains(series: Sequence[Series]) -> list[str]:
    """The domains of the series, in the benchmark's order."""
    return sort_domains(domain for one in series for domain in one.domains)


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


def finish_line(
    one: Series, cells: Sequence[Cell], differs: Sequence[str] = (), label: str = "", members: Sequence[Series] = ()
) -> Line:
    """A line with the protocol and the command of its first run; of several series all values are named."""
    found: dict[str, dict[str, None]] = {"method": {one.first.spec: None}}
    for member in members or (one,):
        for row in member.rows:
            for key, value in _describe_protocol(row, member.seeds).items():
                found.setdefault(key, {})[value] = None
    protocol = tuple((key, " | ".join(values)) for key, values in found.items())
    ours = one.first.method == "lmr" and not one.changes
    return Line(label or one.label, tuple(cells), tuple(differs), protocol, one.first.command, ours)


def _describe_protocol(row: Row, seeds: Sequence[int]) -> dict[str, str]:
    return {
        "backbone": ", ".join(f"{key} {value}" for key, value in row.backbone.items()),
        "dataset": row.dataset,
        **({"data": describe_data(row)} if row.protocol else {}),
        "severity": str(row.severity),
        "prompts": f"{row.prompts.get('name')} ({row.prompts.get('count')} sentences)",
        "batch size": str(row.batch_size),
        "images": str(row.images),
        "order": f"{row.order_words}, seeds {', '.join(map(str, seeds))}",
        "reset": row.reset,
        "answers": f"{row.emit} the batch's own update",
    }


def describe_data(row: Row) -> str:
    """What the data say of themselves: whether they are the official ones, or made."""
    return "; ".join(f"{key}: {value}" for key, value in row.protocol.items())


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
    """Everything else that was measured, averaged over the domains that all have."""
    return _build_metrics(setting, series, tuple(MEASURES.values()), "measures", "What else was measured")


def build_costs(setting: Setting, series: Sequence[Series]) -> Table | None:
    """Cost of single images, as the paper's table of efficiency: only where a method was made to take one at a time."""
    single = [s for s in series if s.first.batch_size == 1 and not s.changes]
    counts = [s.first.images for s in single]
    shown = [s for s in single if s.first.images == max(counts, key=counts.count)]
    if len(shown) < 2 or not any(_usual_batch(s) != 1 for s in shown):
        return None
    published = find_published("efficiency") if setting.dataset == "imagenet-c-5000" else None
    columns = tuple(MEASURES[key] for key in COSTS)
    ordered = tell_apart(sorted(shown, key=_place))
    left = note_left_out(ordered, single)
    return _build_metrics(setting, ordered, columns, "efficiency", "Cost of single images", published, left)


def _build_metrics(
    setting: Setting,
    series: Sequence[Series],
    columns: Sequence[Column],
    name: str,
    what: str,
    published: PublishedTable | None = None,
    notes: Sequence[str] = (),
) -> Table | None:
    lines = []
    domains = find_common(series)
    series, seeds = share_seeds(series, domains)
    for one in series:
        theirs = published.find(one.first.spec) if published else None
        cells = []
        for column in columns:
            beside = theirs.value(column.key) if theirs else None
            cells.append(make_cell(one.average(domains, column.key), beside, list_runs(one, domains)))
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
        notes=(*seeds, *_note_means(domains, series), *note_differences(series), *notes),
    )


def find_common(series: Sequence[Series]) -> list[str]:
    """The domains that all have: means over others are not comparable."""
    return [domain for domain in order_domains(series) if all(domain in one.domains for one in series)]


def _note_means(domains: Sequence[str], series: Sequence[Series]) -> list[str]:
    every = len(order_domains(series))
    if len(domains) < every:
        return [f"Means over the {len(domains)} of {every} domains that all lines have: {', '.join(domains)}."]
    return ["Means over the domains."] if every > 1 else []


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
