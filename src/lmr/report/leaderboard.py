"""Methods against kinds of streams: the leaderboard, streams as they are in life, and skewed classes.

A kind of stream is read from the protocol of a run: order, domains, timing, reset, batch size, severity and dataset. In
every column all lines have the same streams, so that their numbers can be compared.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lmr.bench.running.metrics import judge_classes, share_below, window_gains, worst_drop
from lmr.bench.running.row import Row
from lmr.data.names import ORDERS, describe_order
from lmr.report.gains import COUNTS, DIFFERENCE, Compared, Entry, build_gains, compare_with_best, show_difference
from lmr.report.groups import (
    DTYPE,
    EMISSION,
    SHUFFLE,
    WEIGHTS,
    RunGroup,
    Setting,
    Settings,
    is_natural,
    name_seeds,
    name_stream,
    sort_groups,
    split,
    tell_apart,
)
from lmr.report.runs import Runs
from lmr.report.table import Cell, Column, Table, fill, pivot
from lmr.report.traits import LineKind, StreamKind, expand_spec, find_known

T = TypeVar("T", bound=Hashable)
Gains = NDArray[np.float64]
SHUFFLED = "shuffled"
PLAIN_ORDERS = (SHUFFLED, "file")
HAUL = "haul"  # the order of the long haul
ORDER_NAMES = {
    SHUFFLE: SHUFFLED, "dirichlet": "correlated", "classes": "by class", "shift": "label shift", HAUL: "long haul",
}  # fmt: skip
FREQUENT = {1: "one class", 2: "two classes"}
OWN = 0  # in place of a batch size: the one that the values of each method were chosen for
FIELDS = ("severity", "dataset", "images")  # that the head of a column names if it must
GAIN, WORST = Column("gain", "mean gain", 1), Column("worst", "worst case", 1)
LIFE = (Column("below", "windows below %", 1, False), Column("drop", "worst drop", 1, False), WORST)
BOARD = (
    GAIN,
    WORST,
    Column("ece", "ECE %", 1, False),
    Column("forwards", "forwards", 2, None),
    Column("state_bytes", "state, bytes", 0, None),
)
LEAD = (
    "The best of many methods is partly the luckiest: the difference is to the method that is best on the other half "
    "of the images in the other orders. ± images and ± orders are the two parts of half of the 95 % interval."
)
SKEW = {
    "accuracy": "accuracy",
    "accuracy_second_half": "accuracy, second half",
    "macro_recall": "macro recall",
    "macro_recall_second_half": "macro recall, second half",
}
SKEW_COLUMNS = (
    *(
        Column(f"{key}-{part}", head, 1)
        for key, name in SKEW.items()
        for part, head in (("mean", name), ("worst", f"worst {name}"))
    ),
    Column("streams", "streams", 0, None),
)


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
    def clean(self) -> bool:
        """True if all images are clean; they count with the same kind of stream at any severity."""
        return not self.severity and not self.natural

    @property
    def place(self) -> tuple[Any, ...]:
        """A key that sorts columns: corruptions, hauls, natural domains; then by kind of stream, order and batch."""
        kind = ORDERS.index(self.kind) if self.kind in ORDERS else len(ORDERS)
        kinds = self.natural, self.kind == HAUL, list(StreamKind).index(self.stream), kind, len(self.order), self.order
        return *kinds, -self.severity, -self.batch_size, self.images, self.dataset

    def describe(self, batch_size: int, shown: Collection[str] = ()) -> str:
        """Return the head of a column, without the usual batch size; with dataset, severity or images if ``shown``."""
        order = self.order
        if self.stream.several:
            order = f"{self.stream.value}{order.removeprefix(SHUFFLED)}"
        elif self.natural:
            order = re.sub(rf"^{SHUFFLED}", "each domain", order)
        sizes = {OWN: "own batches", 1: "single images"}
        parts = [self.dataset] if "dataset" in shown else [self.dataset.split("@")[0]] if self.natural else []
        parts += [order, *([f"severity {self.severity}"] if "severity" in shown and self.severity else [])]
        parts += [sizes.get(self.batch_size, f"batches of {self.batch_size}")] if self.batch_size != batch_size else []
        return ", ".join([*parts, *([f"{self.images:,} images"] if "images" in shown else [])])


def find_scenario(one: RunGroup) -> Scenario:
    """Return the kind of stream that a group of runs is about."""
    row, setting = one.first, one.setting
    facts = row.order.get("kind", ""), name_order(row.order), setting.stream, row.batch_size
    return Scenario(setting.dataset, *facts, one.length, setting.severity, is_natural(row))


def _list_scenarios(one: RunGroup) -> list[Scenario]:
    """Return the kinds of streams of a group: where its batches are those of its method, also that."""
    own = find_scenario(one)
    suits = own.plain and (one.kind is LineKind.BASELINE or own.batch_size == one.usual_batch)
    return [own, replace(own, batch_size=OWN)] if suits else [own]


def _is_life(one: RunGroup) -> bool:
    return not find_scenario(one).plain


def identify_stream(row: Row, timing: bool = True) -> str:
    """Return what two runs share that saw the same images in the same order with the same model.

    Without ``timing``: the frozen model is the same at any.
    """
    order = [value for key, value in row.order.items() if timing or key != "timing"]
    model = row.backbone.get("weights"), row.backbone.get("dtype"), row.prompts.get("digest")
    stream = row.dataset, row.data_digest, row.domain, row.severity, row.seed, row.images, *order, *row.domains
    return repr((*model, *stream))


@dataclass(frozen=True)
class World:
    """All groups on one kind of data with one model, at any severity, in any order and batch size."""

    setting: Setting  # without what differs
    groups: tuple[RunGroup, ...]

    @cached_property
    def references(self) -> dict[str, Row]:
        """The rows of the frozen model by the stream they are about: batch size and timing change nothing."""
        rows = (row for one in self.groups if one.kind is LineKind.BASELINE for row in one.rows)
        return {identify_stream(row, timing=False): row for row in rows}

    def find_reference(self, row: Row) -> Row | None:
        """Return the row of the frozen model on the same stream."""
        return self.references.get(identify_stream(row, timing=False))

    def measure_gains(self, runs: Runs, row: Row) -> Gains | None:
        """Return accuracy minus the frozen model's in every window of a run, [W]; None without answers of both."""
        reference = self.find_reference(row)
        answers = [runs.samples(one) for one in (row, reference)] if reference else []
        right = [samples["true"] == samples["predicted"] for samples in answers if samples is not None]
        return window_gains(*right) if len(right) == 2 and len(right[0]) == len(right[1]) else None


def find_worlds(settings: Settings, wanted: Callable[[RunGroup], bool] = _is_life) -> list[World]:
    """Return the worlds with a wanted group; default: on a stream that is not as in published benchmarks."""
    found: dict[Setting, list[RunGroup]] = {}
    for setting, groups in settings.items():
        name = re.sub(r"^pocket-c-\d+$", "pocket-c", setting.dataset)  # stored runs on drawings: one world
        found.setdefault(_blur(setting, name), []).extend(groups)
    worlds = [World(setting, tuple(groups)) for setting, groups in found.items()]
    return [world for world in worlds if any(map(wanted, world.groups))]


def _blur(setting: Setting, dataset: str) -> Setting:
    return replace(setting, dataset=dataset, severity=0, order=SHUFFLE, stream=StreamKind.DOMAIN)


def build_life(runs: Runs, settings: Settings) -> list[Table]:
    """Return a table for every model and kind of data that was run on streams as they are in life.

    Published streams are there to compare with, at the severities of the others only.
    """
    tables = []
    for world in find_worlds(settings):
        every = [members for members in _find_lines(world.groups) if any(map(_is_life, members))]
        severities = {one.setting.severity for members in every for one in members if _is_life(one)}
        lines = [[one for one in members if one.setting.severity in {*severities, 0}] for members in every]
        tables.append(Board(runs, world, lines).build("life", "In life", LIFE))
    return tables


def build_leaderboards(runs: Runs, settings: Settings, compared: Compared | None = None) -> list[Table]:
    """Return a leaderboard for every model and its prompts, and how far the reference is from the best other method.

    With a reference or all pairs in ``compared``, a table of differences for every column follows.
    """
    tables = []
    for setting, members in split(settings, lambda setting: _blur(setting, "")).items():
        groups = [one for own in members for one in settings[own] if one.is_main]
        board = Board(runs, World(setting, tuple(groups)), _find_lines(groups))
        table = board.build("leaderboard", "Leaderboard", BOARD)
        gain = table.columns.index(GAIN)
        lines = sorted(table.lines, key=lambda line: -_or_nan(line.cells[gain].value, -np.inf))
        tables += [replace(table, lines=tuple(lines)), *board.lead(compared), *board.compare(compared)]
    return tables


def _find_lines(groups: Sequence[RunGroup]) -> list[list[RunGroup]]:
    """Return the groups of every configuration, in the order of tables."""
    found = {members[0]: members for members in split(groups, identify_line).values()}
    return [found[first] for first in sort_groups(found)]


def identify_line(one: RunGroup) -> tuple[Any, ...]:
    """Return what the groups of one line share, whatever the stream: method, watch, emission and model.

    A run from before a method had some argument is of the same configuration as one with the default of it.
    """
    weights, dtype, *_ = one.ground
    known = find_known(one.first.method) is not None
    values = sorted(expand_spec(one.first.spec).items()) if known else one.first.spec
    return one.first.method, repr(values), one.watch, one.first.emit, weights, dtype


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

    def __init__(self, runs: Runs, world: World, lines: Sequence[Sequence[RunGroup]]) -> None:
        """Take the groups of each line; ``world`` has the runs of the frozen model."""
        self.runs, self.world, self.lines = runs, world, lines
        self.firsts = tell_apart((members[0] for members in lines), (EMISSION, WEIGHTS, DTYPE))
        entries = _choose_columns(_enter_clean(pd.DataFrame(self._list_entries())))
        sizes = entries[entries["batch_size"] != OWN].drop_duplicates(["line", "scenario"])["batch_size"]
        usual = max(sizes.unique(), key=lambda size: ((sizes == size).sum(), size), default=OWN)
        self.heads = _name_columns(entries["scenario"].unique().tolist(), int(usual))
        self.entries = entries.assign(column=entries["scenario"].map(self.heads))
        above = self.entries["value"] - self.entries["frozen"]
        self.above = above.groupby([self.entries["line"], self.entries["scenario"]], sort=False).mean()
        by_line = entries.groupby("line")["scenario"].unique()
        fixed = {scenario for scenario in self.heads if scenario.batch_size != OWN} or set(self.heads)
        self.core = choose_common([frozenset(fixed.intersection(own)) for own in by_line])

    def _list_entries(self) -> list[dict[str, Any]]:
        entries = []
        for number, members in enumerate(self.lines):
            for one in members:
                for row in one.rows:
                    reference = self.world.find_reference(row)
                    entry = {
                        "line": number, "stream": identify_stream(row), "seed": row.seed, "row": row, "run": row.run,
                        "value": _read(row), "frozen": _read(reference), "reference": reference and reference.run,
                        "baseline": one.kind is LineKind.BASELINE,
                    }  # fmt: skip
                    entries += [entry | {"scenario": s, "batch_size": s.batch_size} for s in _list_scenarios(one)]
        return entries

    def build(self, kind: str, title: str, summaries: Sequence[Column]) -> Table:
        """Return the table, with the ``summaries`` of each line as its last columns."""
        columns = (*(Column(head, head, 1) for head in self.heads.values()), *summaries)
        grouped = self.entries.groupby(["line", "column"], sort=False)
        cells = pivot({cast("tuple[int, str]", key): own for key, own in grouped})
        lines = []
        for number, own in self.entries.groupby("line"):
            number = int(str(number))
            cells |= {(number, key): cell for key, cell in self._summarise(number, own, summaries).items()}
            lines.append(self.firsts[number].make_line(fill(cells, number, columns)))
        core = "; ".join(head for scenario, head in self.heads.items() if scenario in self.core)
        notes = [f"Columns of the means: {core}."] if GAIN in summaries else []
        return self.world.setting.make_table(kind, title, columns, lines, notes=(*notes, *self._describe_columns()))

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

    def _summarise(self, number: int, own: pd.DataFrame, summaries: Sequence[Column]) -> dict[str, Cell]:
        """Return the summaries of a line by their keys; those that it lacks the runs for are left out."""
        above = self.above[number].dropna()
        core = own[own["scenario"].isin(self.core)]
        whole = len(self.core) == core["scenario"].nunique()
        found = {}
        if self.core <= set(above.index):
            if len(above):
                worst = own[own["scenario"] == above.idxmin()]
                runs = tuple(dict.fromkeys([*worst["run"], *worst["reference"].dropna()]))
                found["worst"] = Cell(float(above.min()), seeds=worst["seed"].nunique(), runs=runs)
            gained = above[above.index.isin(self.core)]
            if len(gained):
                runs = tuple(dict.fromkeys([*core["run"], *core["reference"].dropna()]))
                found["gain"] = Cell(float(gained.mean()), runs=runs)
        for key, scale, part in (("ece", 100, core if whole else own[:0]), ("forwards", 1, core if len(core) else own)):
            values = part["row"].map(lambda row, key=key: _or_nan(row.metrics.get(key))).astype(float)
            means = values.groupby(part["scenario"], sort=False).agg(lambda column: column.mean(skipna=False))
            value = scale * float(means.mean(skipna=False))
            if not np.isnan(value):
                found[key] = Cell(value, runs=tuple(part["run"].unique()))
        states = own["row"].map(lambda row: _or_nan(row.metrics.get("state_kb"))).astype(float)
        if states.notna().any():
            found["state_bytes"] = Cell(1000 * float(states.max()), runs=(own["run"].iloc[int(states.argmax())],))
        if LIFE[0] in summaries and self.firsts[number].kind is not LineKind.BASELINE:
            rows = own.drop_duplicates("run")["row"]
            gains = {row.run: gain for row in rows if (gain := self.world.measure_gains(self.runs, row)) is not None}
            if gains:
                windows, runs = np.concatenate(list(gains.values())), tuple(gains)
                found["below"] = Cell(100 * share_below(windows), runs=runs)
                found["drop"] = Cell(100 * worst_drop(windows), runs=runs)
        return found

    def compare(self, compared: Compared | None) -> list[Table]:
        """Return the differences in every column to a given reference, and between all pairs if they are wanted."""
        if compared is None or (compared.reference is None and not compared.pairs):
            return []
        tables = []
        for scenario, head in self.heads.items():
            tables += build_gains(self.runs, self.world.setting, list(self._enter(scenario).values()), compared, head)
        return tables

    def lead(self, compared: Compared | None) -> list[Table]:
        """Return a table for each reference (default: ours): the best other method of every column."""
        tables = []
        for number, first in enumerate(self.firsts):
            if not (compared or Compared()).matches(first):
                continue
            lines, firsts = [], 0
            for scenario, head in self.heads.items():
                entries = self._enter(scenario)
                others = [other for key, other in entries.items() if key != number]
                own = entries.get(number)
                found = compare_with_best(self.runs, own.rows, [other.rows for other in others]) if own else None
                if found:
                    runs, gain = tuple(dict.fromkeys(row.run for row in found.rows)), found.difference
                    numbers = [found.ours, found.best, *show_difference(gain), gain.orders, gain.images]
                    cells = [Cell(value, runs=runs) for value in numbers]
                    lines.append(
                        others[found.number].group.make_line(cells, label=f"{head}: {others[found.number].group.label}")
                    )
                    firsts += found.ours >= found.best
            name = f"{first.label} against the best other method of every column"
            notes = [f"{first.label} is first in {firsts} of {len(lines)} columns.", LEAD]
            columns = (
                Column("ours", first.label, 1, None),
                Column("best", "best other", 1, None),
                *DIFFERENCE,
                *COUNTS[1:],
            )
            detail = re.sub(r"\W+", "-", first.label)
            tables += (
                [
                    self.world.setting.make_table(
                        "lead", name, columns, lines, detail, corner="column: best other", notes=notes
                    )
                ]
                if lines
                else []
            )
        return tables

    def _enter(self, scenario: Scenario) -> dict[int, Entry]:
        """Return the lines of a column by their numbers, with their rows by stream."""
        entries = {}
        for number, own in self.entries[self.entries["scenario"] == scenario].groupby("line"):
            first, members = self.firsts[int(str(number))], self.lines[int(str(number))]
            group = next(one for one in members if own["run"].iloc[0] in set(one.frame["run"]))
            rows = dict(zip(own["stream"], own["row"], strict=True))
            entries[int(str(number))] = Entry(replace(group, label=first.label), rows)
        return entries


def _enter_clean(entries: pd.DataFrame) -> pd.DataFrame:
    """Return entries by kind of stream; clean images count with every severity that the line has."""
    scenarios = set(entries["scenario"])
    corrupted = split((s for s in scenarios if not s.clean), lambda scenario: replace(scenario, severity=0))
    parts = [entries[~entries["scenario"].map(lambda s: s.clean and s in corrupted)]]
    clean = entries[entries["scenario"].isin(list(corrupted))]
    for (number, scenario), own in clean.groupby(["line", "scenario"], sort=False):
        theirs = set(entries["scenario"][entries["line"] == number])
        parts += [own.assign(scenario=column) for column in corrupted[scenario] if column in theirs]
    return pd.concat(parts).drop_duplicates(["line", "scenario", "stream"], keep="last")


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
    """Return the heads of the columns; where several would be the same, with the fewest facts that differ."""
    heads = {}
    for alike in split(columns, lambda scenario: scenario.describe(batch_size)).values():
        for shown in itertools.chain.from_iterable(itertools.combinations(FIELDS, n) for n in range(len(FIELDS) + 1)):
            named = {scenario: scenario.describe(batch_size, shown) for scenario in alike}
            if len(set(named.values())) == len(alike):
                break
        heads.update(named)
    return {scenario: heads[scenario] for scenario in columns}


def _read(row: Row | None) -> float:
    """Return the accuracy of a run in %; NaN without one."""
    return 100 * _or_nan(row.metrics.get("accuracy")) if row else np.nan


def _or_nan(value: float | None, missing: float = np.nan) -> float:
    return missing if value is None else value


def build_skew(runs: Runs, settings: Settings) -> list[Table]:
    """Return a table for every model, dataset and kind of stream with skewed classes or an onset.

    The columns are points above the frozen model on the same stream, of accuracy and of macro recall: who always
    answers with the most frequent class has a high accuracy, and who spreads the answers evenly finds the rare classes.
    Shuffled streams of the same length are there to compare with. Clean images count with every severity.
    """
    tables = []
    for world in find_worlds(settings, lambda one: one.setting.skewed):
        lengths = {one.first.images for one in world.groups if one.setting.skewed}
        groups = [one for one in world.groups if one.setting.skewed or _is_shuffled(one, lengths)]
        several = len({one.setting.severity for one in groups} - {0}) > 1
        groups.sort(key=_place_skew)
        for (scenario, _), members in split(groups, lambda g: (name_order(g.first.order), g.first.images)).items():
            for severity in sorted({one.setting.severity for one in members} - {0}, reverse=True) or [0]:
                shown = [one for one in members if one.setting.severity in (severity, 0)]
                name = f"{scenario}, severity {severity}" if several and severity else scenario
                tables.append(_build_skew(runs, world, name, shown))
    return tables


def _is_shuffled(one: RunGroup, lengths: set[int]) -> bool:
    return one.setting.order == SHUFFLE and not one.setting.stream.several and one.first.images in lengths


def _place_skew(one: RunGroup) -> tuple[Any, ...]:
    """Return a key that sorts scenarios: onsets last, then from shuffled streams to long tails and changes."""
    order, dominant = one.first.order, one.first.order.get("dominant", "")
    several = ">" in dominant, "tail" in order, "+" in dominant
    return "onset" in order, order["kind"] != SHUFFLE, *several, order.get("majority", ""), one.first.images


def _build_skew(runs: Runs, world: World, scenario: str, groups: Sequence[RunGroup]) -> Table:
    measured = pd.DataFrame({row.run: _measure_skew(runs, row) for one in groups for row in one.rows}, dtype=float).T
    adapted = sorted((one for one in groups if one.kind is not LineKind.BASELINE), key=lambda g: -g.first.batch_size)
    lines = split(sort_groups(adapted), lambda one: (*identify_line(one), one.first.batch_size)).values()
    made, frozen = [], dict[str, None]()
    for first, members in zip(tell_apart(members[0] for members in lines), lines, strict=True):
        pairs = {row.run: ref.run for one in members for row in one.rows if (ref := world.find_reference(row))}
        frozen |= dict.fromkeys(pairs.values())
        above = measured.loc[list(pairs)] - measured.loc[list(pairs.values())].to_numpy()
        runs_used = tuple(dict.fromkeys([*pairs, *pairs.values()]))
        numbers = [value for key in SKEW for value in (above[key].mean(), above[key].min())]
        cells = [Cell() if np.isnan(value) else Cell(float(value), runs=runs_used) for value in (*numbers, len(pairs))]
        made.append(first.make_line(cells))
    title = f"Points above the frozen model, {scenario}"
    means = measured.loc[list(frozen)].mean()
    notes = [f"The frozen model: {'; '.join(f'{SKEW[key]} {means[key]:.1f} %' for key in SKEW)}."] if frozen else []
    return world.setting.make_table("skew", title, SKEW_COLUMNS, made, scenario, notes=tuple(notes))


def _measure_skew(runs: Runs, row: Row) -> dict[str, float | None]:
    """Return the measures of a run in %; those that an old row does not hold are computed from its answers."""
    found: Mapping[str, float | None] = row.metrics
    if any(found.get(key) is None for key in SKEW) and (samples := runs.samples(row)) is not None:
        onset = int(row.order.get("onset", 0))
        found = judge_classes(samples["predicted"][onset:], samples["true"][onset:])
    return {key: None if (value := found.get(key)) is None else 100 * value for key in SKEW}
