"""Differences between methods with their intervals: against one reference, or the best other one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmr.bench.running.metrics import draw_labelled
from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.spec import suggest
from lmr.report.groups import RunGroup, Setting, identify_stream, is_natural, share_seeds
from lmr.report.runs import Runs, Samples
from lmr.report.statistics import Difference, compare_answers, measure_difference
from lmr.report.table import Cells, Column, Layout, fill
from lmr.report.traits import LineKind, expand_spec, label_of, read_spec

_DOMAIN = 1 << 32  # more than the images of a domain
DIFFERENCE = (
    *(Column(key, head, 2, None) for key, head in (("difference", "difference"), ("low", "2.5 %"), ("high", "97.5 %"))),
    *(Column(f"by_{part}", f"± {part}", 2, None) for part in ("images", "orders")),
)
COUNTS = Column("seeds", "orders", 0, None), Column("distinct_images", "images", 0, None)


def check_reference(reference: str | None, groups: Collection[RunGroup]) -> None:
    """Raise LmrError if no run is of the reference."""
    if reference is not None and not any(matches(one, reference) for one in groups):
        known = sorted({one.first.method for one in groups})
        raise LmrError(
            f"No run is of the reference {reference!r}.{suggest(reference, known)} The methods of these runs are: "
            f"{', '.join(known)}."
        )


def matches(one: RunGroup, reference: str | None) -> bool:
    """Return True if a group is of the reference (default: ours), with the values that it names and no watch."""
    if reference is None:
        return one.kind is LineKind.OURS
    name, wanted = read_spec(reference)
    if one.first.method != name or one.key.watch:
        return False
    values = expand_spec(one.first.spec) if wanted else {}
    return all(values.get(key) == value for key, value in wanted.items())


Entry = tuple[RunGroup, Mapping[str, Row]]  # a method in a comparison: its group, and its runs by their stream


def compare_rows(runs: Runs, ours: Mapping[str, Row], other: Mapping[str, Row]) -> tuple[Difference, list[Row]] | None:
    """Return ours minus the other over all that both have, and the rows; None without answers to the same images.

    An image is drawn with all of its answers, under all corruptions and in all orders; the order is the seed.
    """
    pairs = [(ours[key], other[key]) for key in ours if key in other]
    answers = []
    domains: dict[str, int] = {}
    for first, second in pairs:
        one, two = runs.samples(first), runs.samples(second)
        if one is None or two is None:
            return None
        answers.append((tell_images(first, one, domains), tell_images(second, two, domains), first.seed))
    found = compare_answers(answers)
    return (found, [row for column in zip(*pairs, strict=True) for row in column]) if found else None


@dataclass(frozen=True)
class Lead:
    """Ours against the best of others: both accuracies in %, the difference, the number of the best, the runs."""

    ours: float
    best: float
    difference: Difference
    number: int
    rows: list[Row]


def compare_with_best(runs: Runs, ours: Mapping[str, Row], others: Sequence[Mapping[str, Row]]) -> Lead | None:
    """Return ours minus the best of others, of those that have all of our streams; None without answers of all.

    The best of many is partly the luckiest. So the images are split into random halves, and the rival of each half in
    each order is the method that is best on the other half in the other orders.
    """
    able = [number for number, rows in enumerate(others) if set(ours) <= set(rows)]
    used = [[rows[key] for rows in (ours, *(others[number] for number in able))] for key in ours]
    domains: dict[str, int] = {}
    parts = []
    for rows in used:
        found = [samples for row in rows if (samples := runs.samples(row)) is not None]
        if len(rows) < 2 or len(found) < len(rows):
            return None
        answers = [tell_images(rows[0], samples, domains) for samples in found]
        images = answers[0]["index"]
        right = np.stack([samples["true"] == samples["predicted"] for samples in answers])
        parts.append((right, images, np.full(len(images), rows[0].seed), np.full(len(images), 1 / len(images))))
    right, images, orders, weights = (np.concatenate(column, axis=-1) for column in zip(*parts, strict=True))
    rival = np.zeros_like(right[0])
    _, places = np.unique(images, return_inverse=True)
    half = np.random.default_rng(0).permutation(places.max() + 1)[places] % 2
    for side, order in itertools.product((0, 1), np.unique(orders)):
        elsewhere = (half != side) & ((orders != order) | (orders == orders[0]).all())
        mine = (half == side) & (orders == order)
        rival[mine] = right[1 + (right[1:] @ (weights * elsewhere)).argmax()][mine]
    means = (100 * (right @ weights) / weights.sum()).round(9)  # shown like those of other tables
    best = int(means[1:].argmax())
    difference = measure_difference(right[0], rival, images, orders, weights)
    rows = [row for own in used for row in (own[0], own[1 + best])]
    return Lead(float(means[0]), float(means[1 + best]), difference, able[best], rows)


def tell_images(row: Row, samples: Samples, domains: dict[str, int]) -> Samples:
    """Return the samples that are judged, with an index that tells the images of natural domains apart.

    Images that revealed their label before the stream, and clean ones before an onset, are not judged.
    """
    kept = np.ones(len(samples["index"]), bool)
    onset, (labels, _, when) = int(row.order.get("onset", 0)), row.order.get("labels", "").partition(" ")
    kept[:onset] = False
    if when == "whole":
        kept[draw_labelled(int(labels), when, row.seed, len(kept), onset)] = False
    samples = {name: values[kept] for name, values in samples.items()}
    if not is_natural(row):
        return samples
    places = np.array([domains.setdefault(name, len(domains)) for name in row.domains or (row.domain,)])
    own = samples.get("domain", np.zeros_like(samples["index"]))
    return samples | {"index": samples["index"] + _DOMAIN * places[own]}


def enter_groups(groups: Sequence[RunGroup]) -> list[Entry]:
    """Return the groups of one setting with the seeds that they all have."""
    return [(one, {identify_stream(row): row for row in one.rows}) for one in share_seeds(groups)[0]]


def lay_gains(
    runs: Runs, setting: Setting, entries: Sequence[Entry], reference: str | None = None, about: str = ""
) -> list[Layout]:
    """Return the reference (default: ours) minus every other method with 95 % intervals.

    Of several references, that which shares most streams with the other is taken. ``about`` says what the entries share
    besides the setting.
    """
    references = [entry for entry in entries if matches(entry[0], reference)]
    references = [entry for entry in references if not entry[0].changes] or references
    lines, cells = list[RunGroup](), Cells()
    for entry in entries if references else ():
        partner = _find_partner(references, entry)
        found = compare_rows(runs, partner[1], entry[1]) if entry not in references else None
        if found:
            gain, rows = found
            domains = {name for row in rows for name in (row.domains or (row.domain,))}
            numbers = measure_gain(gain) | {"domains": len(domains), "seeds": len({row.seed for row in rows})}
            cells |= fill(len(lines), numbers, rows)
            lines.append(replace(entry[0], label=f"{partner[0].label} − {entry[0].label}"))
    if not lines:
        return []
    columns = (*DIFFERENCE, Column("domains", "domains", 0, None), *COUNTS)
    heading = f"{label_of(references[0][0].first)} minus others, points of accuracy" + (f", {about}" if about else "")
    return [Layout("gains", heading, setting, lines, columns, cells=cells, detail=about, corner="pair")]


def measure_gain(gain: Difference) -> dict[str, float | None]:
    """Return the numbers of a difference by their columns, in points."""
    points = {"difference": gain.mean, "low": gain.low, "high": gain.high, "by_images": gain.by_images}
    scaled = {key: 100 * value for key, value in points.items()}
    orders = None if gain.by_orders is None else 100 * gain.by_orders
    return {**scaled, "by_orders": orders, "seeds": gain.orders, "distinct_images": gain.images}


def _find_partner(references: Sequence[Entry], entry: Entry) -> Entry:
    """Return the reference that shares most streams with an entry, if possible in the same batch size."""

    def count(reference: Entry) -> tuple[int, bool]:
        return len(reference[1].keys() & entry[1].keys()), reference[0].key.batch_size == entry[0].key.batch_size

    return max(references, key=count)
