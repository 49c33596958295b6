"""Methods against kinds of streams: the leaderboard, and the table of streams as they are in life.

A kind of stream is read from the protocol of a run: order, domains, timing, reset, batch size, severity and dataset. In
every column all lines have the same streams, so that their numbers can be compared.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lmr.bench.running.metrics import WINDOW, share_below, window_gains, worst_drop
from lmr.bench.running.row import Row
from lmr.core.card import Role
from lmr.data.names import ORDERS, describe_order
from lmr.report.gains import Compared, Entry, Gain, build_gains, compare_rows
from lmr.report.groups import SHUFFLE, RunGroup, Setting, Settings, is_natural, name_seeds, split
from lmr.report.runs import Runs
from lmr.report.selection import (
    DTYPE,
    EMISSION,
    WEIGHTS,
    get_usual_batch,
    is_main,
    name_stream,
    sort_groups,
    tell_apart,
)
from lmr.report.table import Cell, Column, Table, TableKind, make_cell, show_number
from lmr.report.traits import LineKind, StreamKind, expand_spec, find_known, role_of

T = TypeVar("T", bound=Hashable)
Gains = NDArray[np.float64]
StreamId = tuple[Any, ...]  # as ``identify_stream`` returns it
SHUFFLED = "shuffled"
PLAIN_ORDERS = (SHUFFLED, "file")
HAUL = "haul"  # the order of the long haul
ORDER_NAMES = {
    SHUFFLE: SHUFFLED, "dirichlet": "correlated", "classes": "by class", "shift": "label shift", HAUL: "long haul",
}  # fmt: skip
COUNTS = {1: "one class", 2: "two classes"}
OWN = 0  # in place of a batch size: the one that the values of each method were chosen for
FIELDS = ("severity", "dataset", "images")  # that the head of a column names if it must
DIGITS = 1
WORST = Column("worst", "worst case", DIGITS)
LIFE = (Column("below", "windows below %", 1, False), Column("drop", "worst drop", 1, False), WORST)
NOTE = "Accuracy in %, the mean over the streams of a column, which are the same for all lines."
NOTES = {
    "gain": "Mean gain: points above the frozen model. It, the calibration error (ECE) and the counted forwards of a "
    "step are means over {core}.",
    "worst": "Worst case: the lowest accuracy minus that of the frozen model in any column of the line, in points.",
    "state_bytes": "State: the bytes that a method keeps for one stream, the largest of any column.",
    "below": "Windows are {window:,} consecutive images (a shorter stream is one); the worst drop is the largest "
    "distance below the frozen model in any of them, in points.",
}
BOARD = (
    Column("gain", "mean gain", DIGITS),
    WORST,
    Column("ece", "ECE %", 1, False),
    Column("forwards", "forwards", 2, None),
    Column("state_bytes", "state, bytes", 0, None),
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
        name = f"{100 * float(order['majority']):g} % {COUNTS.get(count, f'{count} classes')}"
    else:
        rest = {key: value for key, value in order.items() if key not in ("onset", "timing")}
        name = describe_order(rest | {"kind": ORDER_NAMES.get(order["kind"], order["kind"])})
    name += ", which changes" if change else ""
    name += f", after {order['onset']} clean images" if "onset" in order else ""
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
    own, usual = find_scenario(one), get_usual_batch(one)
    suits = own.plain and (one.kind is LineKind.BASELINE or own.batch_size == usual)
    return [own, replace(own, batch_size=OWN)] if suits else [own]


def _is_life(one: RunGroup) -> bool:
    return not find_scenario(one).plain


def identify_stream(row: Row) -> StreamId:
    """Return what two runs share that saw the same images in the same order with the same model."""
    return (
        row.backbone.get("weights"), row.backbone.get("dtype"), row.prompts.get("digest"), row.dataset, row.data_digest,
        row.domain, row.severity, row.seed, row.images, *row.order.values(), *row.domains,
    )  # fmt: skip


def _identify_images(row: Row) -> StreamId:
    """Return the stream without its timing: the frozen model is the same at any."""
    return identify_stream(replace(row, order={key: value for key, value in row.order.items() if key != "timing"}))


@dataclass(frozen=True)
class World:
    """All groups on one kind of data with one model, at any severity, in any order and batch size."""

    setting: Setting  # without what differs
    groups: tuple[RunGroup, ...]

    @cached_property
    def references(self) -> dict[StreamId, Row]:
        """The rows of the frozen model by the stream they are about: batch size and timing change nothing."""
        rows = (row for one in self.groups if one.kind is LineKind.BASELINE for row in one.rows)
        return {_identify_images(row): row for row in rows}

    def find_reference(self, row: Row) -> Row | None:
        """Return the row of the frozen model on the same stream."""
        return self.references.get(_identify_images(row))

    def measure_gains(self, runs: Runs, row: Row) -> Gains | None:
        """Return accuracy minus the frozen model's in every window of a run, [W]; None without answers of both."""
        reference = self.find_reference(row)
        answers = [runs.samples(one) for one in (row, reference)] if reference else []
        right = [samples["true"] == samples["predicted"] for samples in answers if samples is not None]
        return window_gains(*right) if len(right) == 2 and len(right[0]) == len(right[1]) else None


def find_worlds(settings: Settings, wanted: Callable[[RunGroup], bool] | None = None) -> list[World]:
    """Return the worlds with a wanted group; default: on a stream that is not as in published benchmarks."""
    wanted = wanted or _is_life
    found: dict[Setting, list[RunGroup]] = {}
    for setting, groups in settings.items():
        name = re.sub(r"^(pocket(-c)?)-\d+$", r"\1", setting.dataset)  # any number of images is from one world
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
        tables.append(Board(runs, world, lines).build(TableKind.LIFE, "In life", LIFE))
    return tables


def build_leaderboards(runs: Runs, settings: Settings, compared: Compared | None = None) -> list[Table]:
    """Return a leaderboard for every model and its prompts, with sentences on where our methods are not first.

    With a reference or all pairs in ``compared``, a table of differences for every column follows.
    """
    tables = []
    for setting, members in split(settings, lambda setting: _blur(setting, "")).items():
        groups = [one for own in members for one in settings[own] if is_main(one)]
        board = Board(runs, World(setting, tuple(groups)), _find_lines(groups))
        tables += [board.build(TableKind.LEADERBOARD, "Leaderboard", BOARD), *board.compare(compared)]
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


class Score(NamedTuple):
    """The numbers of a line in a column."""

    cell: Cell
    rows: dict[StreamId, Row]  # the runs of the cell
    above: float | None  # accuracy minus the frozen model's, in points
    references: tuple[str, ...]  # the runs of the frozen model


class Board:
    """Lines and columns of a table: the runs of every configuration on every kind of stream.

    In a column all lines have the same streams: those with most numbers. A line may have fewer seeds.
    """

    def __init__(self, runs: Runs, world: World, lines: Sequence[Sequence[RunGroup]]) -> None:
        """Take the groups of each line; ``world`` has the runs of the frozen model."""
        self.runs, self.world, self.lines = runs, world, lines
        self.firsts = tell_apart((members[0] for members in lines), (EMISSION, WEIGHTS, DTYPE))
        self.ours = [number for number, first in enumerate(self.firsts) if first.kind is LineKind.OURS]
        columns = _choose_columns(_find_rows(lines))
        self.batch_size = _find_usual_batch(columns)
        self.heads = _name_columns(columns, self.batch_size)
        self.scores = {
            scenario: {number: self._score(rows) for number, rows in columns[scenario].items()}
            for scenario in self.heads
        }  # the lines of every column
        compared = (self._list_columns(number) for number in range(len(lines)))
        self.core = choose_common([frozenset(s for s in own if s.batch_size != OWN) for own in compared])

    def _list_columns(self, number: int) -> list[Scenario]:
        return [scenario for scenario, lines in self.scores.items() if number in lines]

    def _score(self, rows: dict[StreamId, Row]) -> Score:
        references = {stream: self.world.find_reference(row) for stream, row in rows.items()}
        accuracy = pd.DataFrame(
            {"seed": row.seed, "own": _read(row), "frozen": _read(references[stream])} for stream, row in rows.items()
        )
        cell = make_cell(accuracy.groupby("seed")["own"].mean(), (row.run for row in rows.values()))
        above = (accuracy["own"] - accuracy["frozen"]).mean()
        runs = tuple(row.run for row in references.values() if row)
        return Score(cell, rows, None if np.isnan(above) else float(above), runs)

    def build(self, kind: TableKind, title: str, summaries: Sequence[Column]) -> Table:
        """Return the table, with the ``summaries`` of each line as its last columns."""
        lines = []
        for number, (first, members) in enumerate(zip(self.firsts, self.lines, strict=True)):
            own = self._list_columns(number)
            if not own:
                continue
            cells = [self.scores[s][number].cell if s in own else Cell() for s in self.heads]
            cells += [SUMMARIES[column.key](self, number) for column in summaries]
            used = {row.run for s in own for row in self.scores[s][number].rows.values()}
            lines.append(first.make_line(cells, members=[one for one in members if used & set(one.frame["run"])]))
        columns = (*(Column(head, head, DIGITS) for head in self.heads.values()), *summaries)
        core = "; ".join(head for scenario, head in self.heads.items() if scenario in self.core)
        said = [NOTES[c.key].format(core=core, window=WINDOW) for c in summaries if c.key in NOTES]
        sizes = [f" Batches of {self.batch_size} unless the head says otherwise."] if self.batch_size else []
        notes = [NOTE + "".join(sizes), *said, *self._describe_columns(), *self._list_cells()]
        lead: list[str] = []
        if kind is TableKind.LEADERBOARD:
            lines.sort(key=lambda line: np.nan_to_num(-_or_nan(line.cells[len(self.heads)].value), nan=np.inf))
            notes[:0] = filter(None, map(self._tell_leader, self.heads))
            lead = self._tell_firsts()
        more: dict[str, Any] = {"notes": tuple(notes), "lead": tuple(lead)}
        return self.world.setting.make_table(kind, title, columns, lines, **more)

    def _describe_columns(self) -> list[str]:
        """Return the data of the columns, those with the same together."""

        def describe(scenario: Scenario) -> str:
            rows = list(next(iter(self.scores[scenario].values())).rows.values())
            images = " or ".join(f"{count:,}" for count in sorted({row.images for row in rows}))
            domains = dict.fromkeys(name_stream(list(row.domains)) or row.domain for row in rows)
            seeds = name_seeds(row.seed for row in rows)
            return f"{images} images of {scenario.dataset}, {'; '.join(domains)}, {seeds}"

        found = split(self.heads, describe)
        return [f"{'; '.join(self.heads[one] for one in own)}: {text}." for text, own in found.items()]

    def _list_cells(self) -> list[str]:
        """Return notes on the cells without a number, on the worst ones, and on those of fewer seeds."""
        missing: dict[tuple[str, ...], list[str]] = {}
        for number, first in enumerate(self.firsts):
            if own := tuple(head for s, head in self.heads.items() if number not in self.scores[s]):
                missing.setdefault(own, []).append(first.label)
        texts = [f"{', '.join(labels)} ({self._shorten(heads)})" for heads, labels in missing.items()]
        notes = [f"Not run on the streams of these columns: {', '.join(texts)}."] if texts else []
        worst = ((found[1], first.label) for n, first in enumerate(self.firsts) if (found := self.find_worst(n)))
        places = split(worst, lambda pair: pair[0])
        cases = [f"{self.heads[s]} ({', '.join(label for _, label in places[s])})" for s in self.heads if s in places]
        notes += [f"The worst cases are in: {'; '.join(cases)}."] if cases else []
        fewer = []
        for scenario, head in self.heads.items():
            seeds = {number: score.cell.seeds for number, score in self.scores[scenario].items()}
            labels = [self.firsts[number].label for number, count in seeds.items() if count < max(seeds.values())]
            fewer += [f"{head} ({', '.join(labels)})"] if labels else []
        return notes + ([f"Fewer seeds than the others of the column: {'; '.join(fewer)}."] if fewer else [])

    def _shorten(self, heads: Sequence[str]) -> str:
        """Return columns, or where they are most of them the others."""
        others = [head for head in self.heads.values() if head not in heads]
        return "; ".join(heads) if len(heads) <= len(others) else f"all but {'; '.join(others)}"

    def compare(self, compared: Compared | None) -> list[Table]:
        """Return the differences in every column to a given reference, and between all pairs if they are wanted."""
        if compared is None or (compared.reference is None and not compared.pairs):
            return []
        tables = []
        for scenario, head in self.heads.items():
            entries = [Entry(self._find_group(n, score), score.rows) for n, score in self.scores[scenario].items()]
            tables += build_gains(self.runs, self.world.setting, entries, compared, head)
        return tables

    def _find_group(self, number: int, score: Score) -> RunGroup:
        """Return the group of a line that has the first run of a cell, under the label of the line."""
        run = next(iter(score.rows.values())).run
        group = next(one for one in self.lines[number] if run in set(one.frame["run"]))
        return replace(group, label=self.firsts[number].label)

    def _tell_firsts(self) -> list[str]:
        """Return sentences on where our methods are first and where not, and on their worst cases."""
        sentences = []
        for number in self.ours:
            own = self._list_columns(number)
            first = [self.heads[scenario] for scenario in own if number in self._find_leaders(scenario)]
            label, place = self.firsts[number].label, f"{len(first)} of {len(own)} columns"
            behind = [self.heads[scenario] for scenario in own if self.heads[scenario] not in first]
            text = f"{label} is first in {place}{': ' if first else ''}{'; '.join(first)}."
            sentences.append(text + (f" It is not first in {'; '.join(behind)}." if behind else ""))
        worst = {number: found for number in range(len(self.lines)) if (found := self.find_worst(number))}
        for number in self.ours if worst else ():
            needed = set(self._list_columns(number))
            others = (other for other in worst if needed <= set(self._list_columns(other)))
            safest = max(others, key=lambda other: round(worst[other][0], DIGITS), default=number)
            if number in worst and round(worst[number][0], DIGITS) < round(worst[safest][0], DIGITS):
                (gain, where), best = worst[number], worst[safest][0]
                sentences.append(
                    f"The worst case of {self.firsts[number].label} is {show_number(gain, DIGITS, True)}, in "
                    f"{self.heads[where]}; that of {self.firsts[safest].label} is {show_number(best, DIGITS, True)}."
                )
        return sentences

    def _find_leaders(self, scenario: Scenario) -> list[int]:
        """Return the lines with the best number of a column, as it is shown."""
        values = {n: round(score.cell.value or 0.0, DIGITS) for n, score in self.scores[scenario].items()}
        return [number for number, value in values.items() if value == max(values.values())]

    def _tell_leader(self, scenario: Scenario) -> str:
        """Return a sentence on a column in which one of our methods is not first; empty if all are."""
        scores, leaders = self.scores[scenario], self._find_leaders(scenario)
        texts, gains = [], list[Gain]()
        for number in self.ours:
            if number not in scores or number in leaders:
                continue
            text = f"{self.firsts[number].label} has {show_number(scores[number].cell.value, DIGITS)}"
            if gain := compare_rows(self.runs, scores[number].rows, scores[leaders[0]].rows):
                gains.append(gain)
                mean, low, high = (100 * v for v in (gain.difference.mean, gain.difference.low, gain.difference.high))
                text += f", {mean:+.1f} [{low:+.1f}, {high:+.1f}]" + (", indistinguishable" if high >= 0 else "")
            texts.append(text)
        if not texts:
            return ""
        names = " and ".join(self.firsts[number].label for number in leaders)
        best = show_number(scores[leaders[0]].cell.value, DIGITS)
        counts = f" ({count_seeds(gains[0].seeds)}, {gains[0].difference.images:,} images)" if gains else ""
        return f"{self.heads[scenario]}: {names} first with {best}; {'; '.join(texts)}{counts}."

    def find_worst(self, number: int) -> tuple[float, Scenario] | None:
        """Return the lowest accuracy of a line minus the frozen model's, and where; none without the core."""
        above = {s: self.scores[s][number].above for s in self._list_columns(number)}
        known = {scenario: value for scenario, value in above.items() if value is not None}
        if not self.core <= set(known):
            return None
        where = min(known, key=lambda scenario: known[scenario], default=None)
        return (known[where], where) if where else None

    def summarise_worst(self, number: int) -> Cell:
        """Return the worst case of a line."""
        if (found := self.find_worst(number)) is None:
            return Cell()
        score = self.scores[found[1]][number]
        return Cell(found[0], None, score.cell.seeds, runs=(*score.cell.runs, *score.references))

    def summarise_gain(self, number: int) -> Cell:
        """Return the mean gain of a line over the columns in common; none where the line has not all of them."""
        own = [self.scores[s][number] for s in self.heads if s in self.core and number in self.scores[s]]
        values = [score.above for score in own if score.above is not None]
        if len(values) < len(self.core):
            return Cell()
        runs = (run for score in own for run in (*score.cell.runs, *score.references))
        return Cell(float(np.mean(values)), runs=tuple(dict.fromkeys(runs)))

    def average(self, number: int, metric: str, scale: float, strict: bool) -> Cell:
        """Return the mean of a metric over the columns in common, ``strict`` or over those of them that a line has."""
        own = [s for s in self._list_columns(number) if s in self.core]
        own = own or ([] if strict else self._list_columns(number))
        if not own or (strict and len(own) < len(self.core)):
            return Cell()
        rows = [list(self.scores[scenario][number].rows.values()) for scenario in own]
        means = [np.mean([_or_nan(row.metrics.get(metric)) for row in column]) for column in rows]
        value = scale * float(np.mean(means))
        return Cell() if np.isnan(value) else Cell(value, runs=tuple(row.run for column in rows for row in column))

    def summarise_state(self, number: int) -> Cell:
        """Return the largest state of any stream of a line, in bytes."""
        rows = [row for s in self._list_columns(number) for row in self.scores[s][number].rows.values()]
        known = {row.run: value for row in rows if (value := row.metrics.get("state_kb")) is not None}
        largest = max(known, key=lambda run: known[run], default=None)
        return Cell(1000 * known[largest], runs=(largest,)) if largest else Cell()

    def _list_windows(self, number: int) -> tuple[Gains, tuple[str, ...]] | None:
        """Return the gains of all windows of a line, and their runs; None for the frozen model, or without answers."""
        if self.firsts[number].kind is LineKind.BASELINE:
            return None
        rows = [row for s in self._list_columns(number) for row in self.scores[s][number].rows.values()]
        found = {row.run: self.world.measure_gains(self.runs, row) for row in rows}
        known = {run: gains for run, gains in found.items() if gains is not None}
        return (np.concatenate(list(known.values())), tuple(known)) if known else None

    def summarise_windows(self, number: int, measure: Callable[[Gains], float]) -> Cell:
        """Return a measure of the gains in all windows of a line, in % or points; none without windows."""
        found = self._list_windows(number)
        return Cell(100 * measure(found[0]), runs=found[1]) if found else Cell()


SUMMARIES: dict[str, Callable[[Board, int], Cell]] = {
    "gain": Board.summarise_gain,
    "worst": Board.summarise_worst,
    "ece": lambda board, number: board.average(number, "ece", 100, strict=True),
    "forwards": lambda board, number: board.average(number, "forwards", 1, strict=False),
    "state_bytes": Board.summarise_state,
    "below": lambda board, number: board.summarise_windows(number, share_below),
    "drop": lambda board, number: board.summarise_windows(number, worst_drop),
}


def _find_rows(lines: Sequence[Sequence[RunGroup]]) -> dict[Scenario, dict[int, dict[StreamId, Row]]]:
    """Return the runs of every line by kind of stream; clean images count with every severity that the line has."""
    found: dict[Scenario, dict[int, dict[StreamId, Row]]] = {}
    clean: list[tuple[Scenario, int, dict[StreamId, Row]]] = []
    for number, members in enumerate(lines):
        for one in members:
            rows = {identify_stream(row): row for row in one.rows}
            for scenario in _list_scenarios(one):
                if scenario.clean:
                    clean.append((scenario, number, rows))
                else:
                    found.setdefault(scenario, {}).setdefault(number, {}).update(rows)
    corrupted = split(found, lambda scenario: replace(scenario, severity=0))
    for scenario, number, rows in clean:
        for column in corrupted.get(scenario, [scenario]):
            if number in found.get(column, {}) or column is scenario:
                found.setdefault(column, {}).setdefault(number, {}).update(rows)
    return found


def _choose_columns(
    found: Mapping[Scenario, Mapping[int, Mapping[StreamId, Row]]],
) -> dict[Scenario, dict[int, dict[StreamId, Row]]]:
    """Return the columns, in their order, with the streams in common, of the seeds for which a line has all of them.

    A column of one line is left out if others have more. Own batches are a column if they are of several sizes; columns
    with nothing else are left out then.
    """
    columns: dict[Scenario, dict[int, dict[StreamId, Row]]] = {}
    for scenario in sorted(found, key=lambda scenario: scenario.place):
        lines = found[scenario]
        common = choose_common([frozenset(rows) for rows in lines.values()])
        shared = {number: _share_streams(rows, lines.values(), common) for number, rows in lines.items()}
        columns[scenario] = {number: rows for number, rows in shared.items() if rows}
    several = any(len(lines) > 1 for lines in columns.values())
    kept = {s: own for s, own in columns.items() if s.batch_size != OWN or _count_sizes(own) > 1}
    suited = {run for s, own in kept.items() if s.batch_size == OWN for run in _list(own, "run")}
    return {
        s: own
        for s, own in kept.items()
        if (len(own) > 1 or not several) and (s.batch_size == OWN or not _list(own, "run") <= suited)
    }


def _share_streams(
    rows: Mapping[StreamId, Row], lines: Iterable[Mapping[StreamId, Row]], common: Collection[StreamId]
) -> dict[StreamId, Row]:
    """Return the runs of a line on the streams in common, of the seeds for which it has all of them."""
    whole = next(own for own in lines if set(common) <= set(own))
    by_seed = split((stream for stream in whole if stream in common), lambda stream: whole[stream].seed).values()
    return {stream: rows[stream] for own in by_seed if set(own) <= set(rows) for stream in own}


def _count_sizes(lines: Mapping[int, Mapping[StreamId, Row]]) -> int:
    """Return the number of batch sizes in a column; that of the frozen model changes nothing."""
    rows = (row for own in lines.values() for row in own.values())
    return len({row.batch_size for row in rows if role_of(row) is not Role.BASELINE})


def _list(lines: Mapping[int, Mapping[StreamId, Row]], key: str) -> set[Any]:
    """Return the values of a field in the rows of a column."""
    return {getattr(row, key) for rows in lines.values() for row in rows.values()}


def _find_usual_batch(columns: Mapping[Scenario, Collection[int]]) -> int:
    """Return the batch size with most numbers; of several the largest."""
    counts = Counter(scenario.batch_size for scenario, lines in columns.items() for _ in lines)
    del counts[OWN]
    return max(counts, key=lambda size: (counts[size], size), default=OWN)


def _name_columns(columns: Collection[Scenario], batch_size: int) -> dict[Scenario, str]:
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


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def count_seeds(count: int) -> str:
    """Return a number of seeds for people."""
    return f"{count} seed{'s' * (count != 1)}"
