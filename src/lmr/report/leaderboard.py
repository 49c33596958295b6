"""Methods against kinds of streams: the leaderboard, and streams as they are in life.

A kind of stream is read from the protocol of a run: order, domains, timing, reset, batch size, severity and dataset. In
every column all lines have the same streams, so that their numbers can be compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lmr.bench.running.metrics import share_below, window_gains, worst_drop
from lmr.bench.running.row import Row
from lmr.data.names import ORDERS, describe_order
from lmr.report.gains import COUNTS, DIFFERENCE, Entry, compare_with_best, lay_gains, matches, measure_gain
from lmr.report.groups import (
    SHUFFLE,
    RunGroup,
    Setting,
    Settings,
    identify_stream,
    is_natural,
    name_seeds,
    name_stream,
    sort_groups,
    split,
    tell_apart,
)
from lmr.report.runs import Runs
from lmr.report.table import Cells, Column, Layout, fill
from lmr.report.traits import LineKind, StreamKind, expand_spec, find_known

T = TypeVar("T", bound=Hashable)
Gains = NDArray[np.float64]
FindFrozen = Callable[[Row], Row | None]
SHUFFLED = "shuffled"
PLAIN_ORDERS = (SHUFFLED, "file")
HAUL = "haul"  # the order of the long haul
ORDER_NAMES = {
    SHUFFLE: SHUFFLED, "dirichlet": "correlated", "classes": "by class", "shift": "label shift", HAUL: "long haul",
}  # fmt: skip
FREQUENT = {1: "one class", 2: "two classes"}
OWN = 0  # in place of a batch size: the one that the values of each method were chosen for
WORST = Column("worst", "worst case", 1)
LIFE = (Column("below", "windows below %", 1, False), Column("drop", "worst drop", 1, False), WORST)
BOARD = (
    Column("gain", "mean gain", 1),
    WORST,
    Column("ece", "ECE %", 1, False),
    Column("forwards", "forwards", 2, None),
    Column("state_bytes", "state, bytes", 0, None),
)
LEAD = "The difference is to the method that is best on the other half of the images in the other orders."


def name_order(order: Mapping[str, str]) -> str:
    """Return the order of a stream for people, from the facts in a row; which classes dominate is left out.

    Examples:
        >>> name_order({"kind": "skew", "majority": "0.8", "dominant": "1+3", "onset": "300"})
        '80 % two classes, after 300 clean images'
        >>> name_order({"kind": "dirichlet", "concentration": "0.1", "timing": "live"})
        'correlated 0.1, live'
    """
    first, change, _ = order.get("dominant", "").partition(">")
    if "tail" in order:
        name = f"long tail {order['tail']}"
    elif "majority" in order:
        count = first.count("+") + 1
        name = f"{100 * float(order['majority']):g} % {FREQUENT.get(count, f'{count} classes')}"
    else:
        rest = {key: value for key, value in order.items() if key not in ("onset", "timing", "labels")}
        name = describe_order(rest | {"kind": ORDER_NAMES.get(order["kind"], order["kind"])})
    name += ", which changes" if change else ""
    name += f", after {order['onset']} clean images" if "onset" in order else ""
    labels, _, when = order.get("labels", "").partition(" ")
    name += f", {labels} labels{' on the way' if when == 'causal' else ''}" if labels else ""
    return name + (f", {order['timing']}" if "timing" in order else "")


@dataclass(frozen=True)
class Scenario:
    """A kind of stream: what the runs of one column share."""

    dataset: str
    kind: str  # of the order, as in a row
    order: str  # as ``name_order`` returns it
    stream: StreamKind
    batch_size: int
    images: int  # 0: whole natural domains
    severity: int  # 0: nothing is corrupted
    natural: bool  # the domains of the dataset are no corruptions

    @property
    def plain(self) -> bool:
        """True if it is as in published benchmarks: no order in the classes, a reset before every domain."""
        return self.order in PLAIN_ORDERS and not self.stream.several

    @property
    def place(self) -> tuple[Any, ...]:
        """A key that sorts columns: corruptions, hauls, natural domains; then by kind of stream, order and batch."""
        kind = ORDERS.index(self.kind) if self.kind in ORDERS else len(ORDERS)
        kinds = self.natural, self.kind == HAUL, list(StreamKind).index(self.stream), kind, len(self.order), self.order
        return *kinds, -self.severity, -self.batch_size, self.images, self.dataset

    def describe(self, batch_size: int, whole: bool = False) -> str:
        """Return the head of a column, without the usual batch size; the ``whole`` has dataset, severity and images."""
        order = self.order
        if self.stream.several:
            order = f"{self.stream.value}{order.removeprefix(SHUFFLED)}"
        elif self.natural:
            order = re.sub(rf"^{SHUFFLED}", "each domain", order)
        sizes = {OWN: "own batches", 1: "single images"}
        parts = [self.dataset] if whole else [self.dataset.split("@")[0]] if self.natural else []
        parts += [order, *([f"severity {self.severity}"] if whole and self.severity else [])]
        parts += [sizes.get(self.batch_size, f"batches of {self.batch_size}")] if self.batch_size != batch_size else []
        return ", ".join([*parts, *([f"{self.images:,} images"] if whole and self.images else [])])


def find_scenario(one: RunGroup) -> Scenario:
    """Return the kind of stream that a group of runs is about."""
    row, setting = one.first, one.setting
    facts = row.order.get("kind", ""), name_order(row.order), setting.stream, row.batch_size
    return Scenario(setting.dataset, *facts, setting.images, setting.severity, is_natural(row))


def _list_scenarios(members: Sequence[RunGroup]) -> Iterator[tuple[RunGroup, Scenario]]:
    """Yield the groups of a line, each with the columns that it counts in.

    Groups whose batches are those of their method are also in the column of own batches. Clean images count with the
    same kind of stream at every severity that the line has.
    """
    found = []
    for one in members:
        own = find_scenario(one)
        suits = own.plain and (one.kind is LineKind.BASELINE or own.batch_size == one.usual_batch)
        found += [(one, own), *([(one, replace(own, batch_size=OWN))] if suits else [])]
    for one, own in found:
        severities = [s for _, s in found if s.severity and replace(s, severity=0) == own]
        yield from ((one, scenario) for scenario in dict.fromkeys(severities or [own]))


def _find_frozen(groups: Iterable[RunGroup]) -> FindFrozen:
    """Return a function that finds the run of the frozen model on a stream: batch size and timing change nothing."""
    rows = (row for one in groups if one.kind is LineKind.BASELINE for row in one.rows)
    known = {identify_stream(row, timing=False): row for row in rows}
    return lambda row: known.get(identify_stream(row, timing=False))


def _measure_windows(runs: Runs, row: Row, frozen: Row) -> Gains | None:
    """Return accuracy minus the frozen model's in every window of a run, [W]; None without answers of both."""
    answers = [samples for one in (row, frozen) if (samples := runs.samples(one)) is not None]
    right = [samples["true"] == samples["predicted"] for samples in answers]
    return window_gains(*right) if len(right) == 2 and len(right[0]) == len(right[1]) else None


def lay_life(runs: Runs, settings: Settings) -> list[Layout]:
    """Return a table for every model and kind of data that was run on streams as they are in life.

    Published streams are there to compare with, at the severities of the others only.
    """
    worlds: Settings = {}
    for setting, groups in settings.items():
        name = re.sub(r"^pocket-c-\d+$", "pocket-c", setting.dataset)  # stored runs on drawings: one world
        worlds.setdefault(replace(setting.keep(), dataset=name), []).extend(groups)
    layouts = []
    for setting, groups in worlds.items():
        life = {one for one in groups if not find_scenario(one).plain}
        severities = {0, *(one.setting.severity for one in life)}
        every = [members for members in _find_lines(groups) if life & set(members)]
        lines = [[one for one in members if one.setting.severity in severities] for members in every]
        layouts += [Board(runs, setting, _find_frozen(groups), lines).lay("life", "In life", LIFE)] if life else []
    return layouts


def lay_leaderboards(runs: Runs, settings: Settings, reference: str | None = None) -> list[Layout]:
    """Return a leaderboard for every model and its prompts, and how far the reference is from the best other method.

    With a reference a table of differences for every column follows.
    """
    layouts = []
    for setting, members in split(settings, Setting.keep).items():
        groups = [one for own in members for one in settings[own] if one.is_main]
        board = Board(runs, setting, _find_frozen(groups), _find_lines(groups))
        layouts += [board.lay("leaderboard", "Leaderboard", BOARD), *board.lay_leads(reference)]
        if reference:
            for head, entries in board.enter():
                layouts += lay_gains(runs, setting, list(entries.values()), reference, head)
    return layouts


def _find_lines(groups: Sequence[RunGroup]) -> list[list[RunGroup]]:
    """Return the groups of every configuration, in the order of tables."""
    found = {members[0]: members for members in split(groups, identify_line).values()}
    return [found[first] for first in sort_groups(found)]


def identify_line(one: RunGroup) -> tuple[Any, ...]:
    """Return what the groups of one line share, whatever the stream: method, watch and emission.

    A run from before a method had some argument is of the same configuration as one with the default of it.
    """
    known = find_known(one.first.method) is not None
    values = sorted(expand_spec(one.first.spec).items()) if known else one.first.spec
    return one.first.method, repr(values), one.key.watch, one.key.emit


def choose_common(sets: Sequence[frozenset[T]]) -> frozenset[T]:
    """Return the set with most numbers in common: its size times the number of sets that it is a part of.

    Of several the one that most sets have.

    Examples:
        >>> sorted(choose_common([frozenset("abc"), frozenset("ab"), frozenset("abd")]))
        ['a', 'b']
    """
    candidates = dict.fromkeys([*sets, frozenset.intersection(*sets)] if sets else [frozenset[T]()])
    counts = {own: sum(own <= other for other in sets) for own in candidates}
    return max(counts, key=lambda own: (len(own) * counts[own], counts[own]))


class Board:
    """Lines and columns of a table: the runs of every configuration on every kind of stream.

    In a column all lines have the same streams: those with most numbers. A line may have fewer seeds.
    """

    def __init__(self, runs: Runs, setting: Setting, frozen: FindFrozen, lines: Sequence[Sequence[RunGroup]]) -> None:
        """Take the groups of each line."""
        self.runs, self.setting = runs, setting
        firsts = (members[0] for members in lines)  # of any batch size
        self.firsts = tell_apart(replace(one, key=one.key._replace(batch_size=0)) for one in firsts)
        entries = [
            {
                "line": number, "scenario": scenario, "batch_size": scenario.batch_size, "seed": row.seed,
                "stream": identify_stream(row), "row": row, "run": row.run, "frozen": (base := frozen(row)),
                "value": _read(row), "above": _read(row) - _read(base), "baseline": one.kind is LineKind.BASELINE,
                **{key: _or_nan(row.metrics.get(key)) for key in ("ece", "forwards", "state_kb")},
            }
            for number, members in enumerate(lines)
            for one, scenario in _list_scenarios(members)
            for row in one.rows
        ]  # fmt: skip
        every = pd.DataFrame(entries).drop_duplicates(["line", "scenario", "stream"], keep="last")
        self.entries = _choose_columns(every)
        sizes = self.entries[self.entries["batch_size"] != OWN].drop_duplicates(["line", "scenario"])["batch_size"]
        usual = max(sizes.unique(), key=lambda size: ((sizes == size).sum(), size), default=OWN)
        self.heads = _name_columns(self.entries["scenario"].unique().tolist(), int(usual))
        by_line = self.entries.groupby("line")["scenario"].unique()
        fixed = {scenario for scenario in self.heads if scenario.batch_size != OWN} or set(self.heads)
        self.core = choose_common([frozenset(fixed.intersection(own)) for own in by_line])

    def lay(self, kind: str, title: str, summaries: Sequence[Column]) -> Layout:
        """Return the table, with the ``summaries`` of each line as its last columns; by their gain, if it is one."""
        cells = Cells()
        for number, own in self.entries.groupby("line"):
            cells |= self._summarise(cast("int", number), own, summaries is LIFE)
        grouped = self.entries.groupby(["line", "scenario"], sort=False)
        entries = {(line, self.heads[scenario]): own for (line, scenario), own in cast("Any", grouped)}
        columns = *(Column(head, head, 1) for head in self.heads.values()), *summaries
        core = f"Columns of the means: {'; '.join(head for s, head in self.heads.items() if s in self.core)}."
        notes, order = ((core,), "gain") if summaries is BOARD else ((), "")
        notes = *notes, *self._describe_columns()
        return Layout(kind, title, self.setting, self.firsts, columns, entries, cells, order=order, notes=notes)

    def _describe_columns(self) -> list[str]:
        """Return the data of the columns, those with the same together."""
        found: dict[str, list[str]] = {}
        for scenario, head in self.heads.items():
            rows = self.entries[self.entries["scenario"] == scenario].drop_duplicates("stream")["row"].tolist()
            images = " or ".join(f"{count:,}" for count in sorted({row.images for row in rows}))
            domains = "; ".join(dict.fromkeys(name_stream(list(row.domains)) or row.domain for row in rows))
            seeds = name_seeds(row.seed for row in rows)
            found.setdefault(f"{images} images of {scenario.dataset}, {domains}, {seeds}", []).append(head)
        return [f"{'; '.join(heads)}: {text}." for text, heads in found.items()]

    def _summarise(self, number: int, own: pd.DataFrame, windows: bool) -> Cells:
        """Return the summaries of a line; those that it lacks the runs for are left out."""
        means = {s: part[["ece", "forwards"]].mean(skipna=False) for s, part in own.groupby("scenario", sort=False)}
        above = own.groupby("scenario", sort=False)["above"].mean().dropna()
        core = own[own["scenario"].isin(self.core)]
        cells = Cells()
        if len(above) and self.core <= set(above.index):
            worst = own[own["scenario"] == above.idxmin()]
            cells |= fill(number, {"worst": float(above.min())}, _list_rows(worst))
            if self.core:
                gain = float(above[above.index.isin(self.core)].mean())
                cells |= fill(number, {"gain": gain}, _list_rows(core))
        whole = set(core["scenario"]) == self.core
        for key, scale, part in (("ece", 100, core if whole else own[:0]), ("forwards", 1, core if len(core) else own)):
            value = scale * float(np.mean([means[scenario][key] for scenario in part["scenario"].unique()] or [np.nan]))
            cells |= {} if np.isnan(value) else fill(number, {key: value}, part["row"])
        if own["state_kb"].notna().any():
            largest = own.loc[[own["state_kb"].idxmax()]]
            cells |= fill(number, {"state_bytes": 1000 * float(largest["state_kb"].iloc[0])}, largest["row"])
        if windows and self.firsts[number].kind is not LineKind.BASELINE:
            known = own.drop_duplicates("run").dropna(subset="frozen")
            pairs = zip(known["row"], known["frozen"], strict=True)
            found = [(row, _measure_windows(self.runs, row, base)) for row, base in pairs]
            gains = [(row, gain) for row, gain in found if gain is not None]
            if gains:
                rows, joined = [row for row, _ in gains], np.concatenate([gain for _, gain in gains])
                cells |= fill(number, {"below": 100 * share_below(joined), "drop": 100 * worst_drop(joined)}, rows)
        return cells

    def enter(self) -> Iterator[tuple[str, dict[int, Entry]]]:
        """Yield the head of each column with its lines, by their numbers."""
        for scenario, head in self.heads.items():
            column = self.entries[self.entries["scenario"] == scenario].groupby("line")
            rows = {cast("int", n): dict(zip(own["stream"], own["row"], strict=True)) for n, own in column}
            yield head, {number: (self.firsts[number], own) for number, own in rows.items()}

    def lay_leads(self, reference: str | None) -> Iterator[Layout]:
        """Yield a table for each reference (default: ours): the best other method of every column."""
        for number, first in enumerate(self.firsts):
            lines, cells = list[RunGroup](), Cells()
            for head, entries in self.enter() if matches(first, reference) else ():
                own, others = entries.pop(number, None), list(entries.values())
                found = compare_with_best(self.runs, own[1], [rows for _, rows in others]) if own else None
                if found:
                    numbers = {"ours": found.ours, "best": found.best} | measure_gain(found.difference)
                    cells |= fill(len(lines), numbers, found.rows)
                    other = others[found.number][0]
                    lines.append(replace(other, label=f"{head}: {other.label}"))
            title = f"{first.label} against the best other method of every column"
            heads = Column("ours", first.label, 1, None), Column("best", "best other", 1, None)
            if lines:
                yield Layout(
                    "lead", title, self.setting, lines, (*heads, *DIFFERENCE, *COUNTS), cells=cells,
                    corner="column: best other", detail=re.sub(r"\W+", "-", first.label), notes=(LEAD,),
                )  # fmt: skip


def _list_rows(entries: pd.DataFrame) -> list[Row]:
    """Return the runs of entries, and those of the frozen model on the same streams."""
    return [*entries["row"], *entries["frozen"].dropna()]


def _choose_columns(entries: pd.DataFrame) -> pd.DataFrame:
    """Return the entries of the columns, in their order, with the streams in common.

    Of them each line keeps the seeds for which it has all. A column of one line is left out if others have more. Own
    batches are a column if they are of several sizes, or if no other column has several lines; columns with nothing
    else are left out then.
    """
    columns: dict[Scenario, pd.DataFrame] = {}
    for scenario in sorted(entries["scenario"].unique(), key=lambda scenario: scenario.place):
        own = entries[entries["scenario"] == scenario]
        common = choose_common([frozenset(streams) for _, streams in own.groupby("line")["stream"]])
        own = own[own["stream"].isin(common)]
        needed = own["seed"].map(own.drop_duplicates("stream").groupby("seed").size())
        columns[scenario] = own[own.groupby(["line", "seed"])["stream"].transform("size") == needed]
    sizes = {s: {row.batch_size for row in own["row"][~own["baseline"]]} for s, own in columns.items()}
    kept = {s: own for s, own in columns.items() if s.batch_size != OWN or len(sizes[s]) > 1}
    shared = {s for s, own in columns.items() if own["line"].nunique() > 1}
    if not shared & set(kept):
        kept = {s: own for s, own in columns.items() if s in shared} or kept
    suited = {run for s, own in kept.items() if s.batch_size == OWN for run in own["run"]}
    chosen = [
        own
        for s, own in kept.items()
        if (s in shared or not shared) and (s.batch_size == OWN or not set(own["run"]) <= suited)
    ]
    return pd.concat(chosen) if chosen else entries[:0]


def _name_columns(columns: Sequence[Scenario], batch_size: int) -> dict[Scenario, str]:
    """Return the heads of the columns; where several would be the same, with all facts."""
    heads = {scenario: scenario.describe(batch_size) for scenario in columns}
    alike = Counter(heads.values())
    return {s: head if alike[head] == 1 else s.describe(batch_size, whole=True) for s, head in heads.items()}


def _read(row: Row | None) -> float:
    """Return the accuracy of a run in %; NaN without one."""
    return 100 * _or_nan(row.metrics.get("accuracy")) if row else np.nan


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
