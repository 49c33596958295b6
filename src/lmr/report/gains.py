"""Differences between methods with their intervals: against one reference, or between all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.spec import suggest
from lmr.report.groups import RunGroup, Setting, is_natural, order_domains, share_seeds
from lmr.report.runs import Runs, Samples
from lmr.report.statistics import Difference, compare_answers, correct_holm
from lmr.report.table import Cell, Column, Line, Table, TableKind
from lmr.report.traits import LineKind, expand_spec, label_of, read_spec

_DOMAIN = 1 << 32  # more than the images of a domain
LEVEL = 0.05  # of differences between all pairs
DIFFERENCE = (
    Column("difference", "difference", 2, None),
    Column("low", "2.5 %", 2, None),
    Column("high", "97.5 %", 2, None),
)
TESTS = (Column("p", "p", 4, None), Column("holm", "p, Holm", 4, None))
COUNTS = (Column("seeds", "seeds", 0, None), Column("distinct_images", "images", 0, None))


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


@dataclass(frozen=True)
class Gain:
    """A difference in points of accuracy, the seeds and the runs that it is computed from."""

    difference: Difference
    seeds: int
    runs: tuple[str, ...]

    def make_cells(self) -> list[Cell]:
        """Return the difference and its interval, then seeds and images."""
        found = self.difference
        numbers = (100 * found.mean, 100 * found.low, 100 * found.high, self.seeds, found.images)
        return [Cell(number, seeds=self.seeds, runs=self.runs) for number in numbers]


def compare_rows(runs: Runs, ours: Mapping[Any, Row], other: Mapping[Any, Row]) -> Gain | None:
    """Return ours minus the other over all that both have; None without answers to the same images.

    An image is drawn with all of its answers, under all corruptions and in all orders.
    """
    pairs = {(ours[key].run, other[key].run): (ours[key], other[key]) for key in ours if key in other}
    answers = []
    domains: dict[str, int] = {}
    for first, second in pairs.values():
        one, two = runs.samples(first), runs.samples(second)
        if one is None or two is None:
            return None
        answers.append((_tell_images(first, one, domains), _tell_images(second, two, domains)))
    found = compare_answers(answers)
    used = tuple(dict.fromkeys(run for column in zip(*pairs, strict=True) for run in column))
    return Gain(found, len({row.seed for row, _ in pairs.values()}), used) if found else None


def _tell_images(row: Row, samples: Samples, domains: dict[str, int]) -> Samples:
    """Return samples with an index that tells the images of natural domains apart; each domain counts its own."""
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

    ``about`` says what the entries share besides the setting. A note says if nothing can be compared.
    """
    compared = compared or Compared()
    references = [one for one in entries if compared.matches(one.group)]
    plain = [one for one in references if not one.group.changes and one.group.watch is None]
    references = references if compared.reference is None else plain or references
    others = [one for one in entries if one not in references] if references else []
    pairs = [(_find_partner(references, other), other) for other in others]
    name = label_of(references[0].group.first) if references else ""
    found = [_build(runs, setting, pairs, f"{name} minus others", about, False)]
    if compared.pairs:
        every = list(itertools.combinations(entries, 2))
        alike = [(one, other) for one, other in every if _saw_same(one.group, other.group)]
        found.append(_build(runs, setting, alike, "All pairs", about, True))
    return [table for table in found if table is not None]


def _build(
    runs: Runs, setting: Setting, pairs: Sequence[tuple[Entry | None, Entry]], title: str, about: str, tested: bool
) -> Table | None:
    """Return a line per pair; with ``tested`` also p-values, as they are and after Holm's correction."""
    made: list[tuple[Entry, Entry, Gain]] = []
    excluded = []
    for ours, other in pairs:
        gain = compare_rows(runs, ours.rows, other.rows) if ours else None
        if ours is None or gain is None:
            excluded.append(other.group.label)
        else:
            made.append((ours, other, gain))
    excluded = list(dict.fromkeys(excluded))
    missing = [f"Not compared, as there are no answers to the same images: {', '.join(excluded)}."] if excluded else []
    where = ", ".join(filter(None, [setting.describe(), about]))
    if not made:
        runs.note(*(f"The table {title!r} is left out for {where}. {note}" for note in missing))
        return None
    plain = [gain.difference.p for *_, gain in made]
    adjusted = correct_holm(plain)
    domains = order_domains([entry.group for pair in pairs for entry in pair if entry])
    narrower: dict[str, list[str]] = {}
    lines: list[Line] = []
    for (ours, other, gain), *tests in zip(made, plain, adjusted, strict=True):
        cells = gain.make_cells()
        own = [Cell(p, seeds=gain.seeds, runs=gain.runs) for p in tests] if tested else []
        label = f"{ours.group.label} − {other.group.label}"
        lines.append(other.group.make_line([*cells[:3], *own, *cells[3:]], label=label))
        for limit in _list_limits(ours, other, domains):
            narrower.setdefault(limit, []).append(label)
    notes = ["Paired bootstrap over images, 2000 draws; an image is drawn with all of its corruptions and seeds."]
    if tested:
        count = sum(p < LEVEL for p in adjusted)
        notes += [
            "p: McNemar's test with images as clusters. Holm's correction is over all pairs of this table: "
            f"{count} of {len(lines)} differ at the level {LEVEL:g}."
        ]
    else:
        notes += ["A pair whose interval contains 0 is statistically indistinguishable."]
    notes += [f"Only over {limit}: {', '.join(labels)}." for limit, labels in narrower.items()]
    more: dict[str, Any] = {"corner": "pair", "notes": (*notes, *missing)}
    columns = (*DIFFERENCE, *(TESTS if tested else ()), *COUNTS)
    detail = " ".join(filter(None, ["pairs" if tested else "", about]))
    heading = f"{title}, points of accuracy" + (f", {about}" if about else "")
    return setting.make_table(TableKind.GAINS, heading, columns, lines, detail, **more)


def _list_limits(ours: Entry, other: Entry, domains: Sequence[str]) -> list[str]:
    """Return why a difference is not that of the table of accuracies."""
    one, two = ours.group, other.group
    common = [domain for domain in domains if domain in one.domains and domain in two.domains]
    limits = [f"{len(common)} of {len(domains)} domains"] if len(common) < len(domains) else []
    return limits + (["the images both have"] if one.first.images != two.first.images else [])


def _saw_same(one: RunGroup, other: RunGroup) -> bool:
    return (one.data, one.stream) == (other.data, other.stream)


def _find_partner(ours: Sequence[Entry], other: Entry) -> Entry | None:
    """Return our entry that shares most with the other; it must have seen the same images in the same stream."""
    same = [one for one in ours if _saw_same(one.group, other.group)]

    def count(entry: Entry) -> tuple[int, bool, bool]:
        one, two = entry.group, other.group
        agreeing = sum(a == b for a, b in zip(one.ground, two.ground, strict=True))
        return agreeing, one.first.images == two.first.images, one.first.batch_size == two.first.batch_size

    return max(same, key=count, default=None)
