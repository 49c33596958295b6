"""Differences between methods with their intervals: against one reference, or between all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmr.bench.running.metrics import draw_labelled
from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.spec import suggest
from lmr.report.groups import RunGroup, Setting, is_natural, share_seeds
from lmr.report.runs import Runs, Samples
from lmr.report.statistics import Difference, compare_answers, correct_holm, measure_difference
from lmr.report.table import Cell, Column, Table
from lmr.report.traits import LineKind, expand_spec, label_of, read_spec

_DOMAIN = 1 << 32  # more than the images of a domain
DIFFERENCE = (
    Column("difference", "difference", 2, None),
    Column("low", "2.5 %", 2, None),
    Column("high", "97.5 %", 2, None),
    Column("by_images", "± images", 2, None),
    Column("by_orders", "± orders", 2, None),
)
TESTS = (Column("p", "p", 4, None, least=1e-4), Column("holm", "p, Holm", 4, None, least=1e-4))
COUNTS = (
    Column("domains", "domains", 0, None),
    Column("seeds", "orders", 0, None),
    Column("distinct_images", "images", 0, None),
)


@dataclass(frozen=True)
class Compared:
    """The differences in a report: a reference minus every other method (default: ours), and all pairs on request."""

    reference: str | None = None
    pairs: bool = False

    def check(self, groups: Collection[RunGroup]) -> None:
        """Raise LmrError if no run is of the reference."""
        if self.reference is not None and not any(map(self.matches, groups)):
            known = sorted({one.first.method for one in groups})
            raise LmrError(
                f"No run is of the reference {self.reference!r}.{suggest(self.reference, known)} The methods of these "
                f"runs are: {', '.join(known)}."
            )

    def matches(self, one: RunGroup) -> bool:
        """Return True if a group is of the reference: the values that it names, and no watch."""
        if self.reference is None:
            return one.kind is LineKind.OURS
        name, wanted = read_spec(self.reference)
        if one.first.method != name or one.watch is not None:
            return False
        values = expand_spec(one.first.spec) if wanted else {}
        return all(values.get(key) == value for key, value in wanted.items())


@dataclass(frozen=True, eq=False)
class Entry:
    """A method in a comparison: its group, and its runs by what two runs must share to be compared."""

    group: RunGroup
    rows: Mapping[Any, Row]


def compare_rows(runs: Runs, ours: Mapping[Any, Row], other: Mapping[Any, Row]) -> tuple[Difference, list[Row]] | None:
    """Return ours minus the other over all that both have, and the rows; None without answers to the same images.

    An image is drawn with all of its answers, under all corruptions and in all orders; the order is the seed.
    """
    pairs = {(ours[key].run, other[key].run): (ours[key], other[key]) for key in ours if key in other}
    answers = []
    domains: dict[str, int] = {}
    for first, second in pairs.values():
        one, two = runs.samples(first), runs.samples(second)
        if one is None or two is None:
            return None
        answers.append((tell_images(first, one, domains), tell_images(second, two, domains), first.seed))
    found = compare_answers(answers)
    return (found, [row for column in zip(*pairs.values(), strict=True) for row in column]) if found else None


@dataclass(frozen=True)
class Lead:
    """Ours against the best of others: both accuracies in %, the difference, the number of the best, the runs."""

    ours: float
    best: float
    difference: Difference
    number: int
    rows: list[Row]


def compare_with_best(runs: Runs, ours: Mapping[Any, Row], others: Sequence[Mapping[Any, Row]]) -> Lead | None:
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
    """Return the groups of one setting with the seeds that they all have; runs are compared by domain and seed."""
    frames = ((one, one.frame.drop_duplicates(["domain", "seed"], keep="last")) for one in share_seeds(groups)[0])
    return [
        Entry(one, dict(zip(zip(own["domain"], own["seed"], strict=True), own["row"], strict=True)))
        for one, own in frames
    ]


def build_gains(
    runs: Runs, setting: Setting, entries: Sequence[Entry], compared: Compared | None = None, about: str = ""
) -> list[Table]:
    """Return the reference minus every other method with 95 % intervals, and all pairs if they are wanted.

    ``about`` says what the entries share besides the setting.
    """
    compared = compared or Compared()
    references = [one for one in entries if compared.matches(one.group)]
    plain = [one for one in references if not one.group.changes and one.group.watch is None]
    references = references if compared.reference is None else plain or references
    others = [one for one in entries if one not in references] if references else []
    found = [(ours, other) for other in others if (ours := _find_partner(references, other))]
    name = label_of(references[0].group.first) if references else ""
    tables = [_build(runs, setting, found, f"{name} minus others", about, False)]
    if compared.pairs:
        every = itertools.combinations(entries, 2)
        alike = [(one, other) for one, other in every if one.group.seen == other.group.seen]
        tables.append(_build(runs, setting, alike, "All pairs", about, True))
    return [table for table in tables if table is not None]


def _build(
    runs: Runs, setting: Setting, pairs: Sequence[tuple[Entry, Entry]], title: str, about: str, tested: bool
) -> Table | None:
    """Return a line per pair; with ``tested`` also p-values, as they are and after Holm's correction."""
    found = ((ours, other, compare_rows(runs, ours.rows, other.rows)) for ours, other in pairs)
    made = [(ours, other, *gain) for ours, other, gain in found if gain]
    if not made:
        return None
    plain = [difference.p for _, _, difference, _ in made]
    lines = []
    for (ours, other, gain, rows), *tests in zip(made, plain, correct_holm(plain), strict=True):
        used, seeds = tuple(dict.fromkeys(row.run for row in rows)), len({row.seed for row in rows})
        domains = {name for row in rows for name in (row.domains or (row.domain,))}
        numbers = [*show_difference(gain), *(tests if tested else ()), len(domains), seeds, gain.images]
        cells = [Cell(value, seeds=seeds, runs=used) for value in numbers]
        lines.append(other.group.make_line(cells, label=f"{ours.group.label} − {other.group.label}"))
    columns = (*DIFFERENCE, *(TESTS if tested else ()), *COUNTS)
    detail = " ".join(filter(None, ["pairs" if tested else "", about]))
    heading = f"{title}, points of accuracy" + (f", {about}" if about else "")
    return setting.make_table("gains", heading, columns, lines, detail, corner="pair")


def show_difference(gain: Difference) -> list[float | None]:
    """Return the numbers of the columns of a difference, in points."""
    numbers = gain.mean, gain.low, gain.high, gain.by_images, gain.by_orders
    return [None if value is None else 100 * value for value in numbers]


def _find_partner(ours: Sequence[Entry], other: Entry) -> Entry | None:
    """Return our entry that shares most with the other; it must have seen the same images in the same stream."""

    def count(entry: Entry) -> tuple[int, bool, bool]:
        one, two = entry.group, other.group
        agreeing = sum(a == b for a, b in zip(one.ground, two.ground, strict=True))
        return agreeing, one.first.images == two.first.images, one.first.batch_size == two.first.batch_size

    return max((one for one in ours if one.group.seen == other.group.seen), key=count, default=None)
