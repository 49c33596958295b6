"""A table before it has a format, and the one function that builds it from its description: a pivot of runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import pandas as pd

from lmr.bench.running.row import Row
from lmr.report.drawing import Drawing
from lmr.report.groups import SHUFFLE, RunGroup, Setting
from lmr.report.protocol import find_differences
from lmr.report.published import PublishedTable
from lmr.report.traits import LineKind, StreamKind


@dataclass(frozen=True)
class Cell:
    """A number, its spread over seeds, the published number to compare with, and the runs it is computed from."""

    value: float | None = None
    sd: float | None = None
    seeds: int = 0
    published: float | None = None
    runs: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Our number minus the published one."""
        return None if self.value is None or self.published is None else self.value - self.published


Cells = dict[tuple[int, str], Cell]  # by line and column
Named = TypeVar("Named", "Table", Drawing)


@dataclass(frozen=True)
class Column:
    """A column: its head, the digits of its numbers, and whether more is better (None: neither)."""

    key: str
    head: str
    digits: int = 2
    higher: bool | None = True

    def show(self, value: float | None, sign: bool = False) -> str:
        """Return a number as text, a dash where there is none; minus is a hyphen so that it can be read back."""
        if value is None or math.isnan(value):
            return "–"
        text = f"{value:+.{self.digits}f}" if sign else f"{value:.{self.digits}f}"
        return text if float(text) else text.replace("-", "+" if sign else "")


@dataclass(frozen=True)
class Line:
    """A line: a method and its cells, and the differences to the published protocol."""

    label: str
    cells: tuple[Cell, ...]
    differs: tuple[str, ...] = ()
    kind: LineKind = LineKind.OTHER
    spec: str = ""
    watched: bool = False


@dataclass(frozen=True)
class Table:
    """A table that can be written in any format."""

    name: str  # of its file
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    corner: str = "method"
    published: PublishedTable | None = None  # where the published numbers are from
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> set[str]:
        """The runs that its numbers are computed from."""
        return {run for line in self.lines for cell in line.cells for run in cell.runs}

    def rank(self) -> list[list[int]]:
        """Return 1 for the best of every column, 2 for the second best, 0 for others: [lines][columns].

        Numbers count as they are shown: two that look the same share a rank. Two that share the first leave no second.
        """
        ranks = []
        for j, column in enumerate(self.columns):
            found = [line.cells[j].value for line in self.lines]
            values = pd.Series([None if v is None else round(v, column.digits) for v in found], dtype=float)
            ranked = values.rank(method="min", ascending=not column.higher)
            compared = column.higher is not None and values.count() > 1
            ranks.append(ranked.where(ranked <= 2, 0).astype(int).tolist() if compared else [0] * len(values))
        return [list(line) for line in zip(*ranks, strict=True)] if ranks else [[] for _ in self.lines]

    def list_notes(self) -> list[str]:
        """Return the notes below it: where published numbers are from, which lines differ and how, and its own."""
        notes = [f"Published: {self.published.cite()}."] if self.published else []
        compared = [line for line in self.lines if any(cell.published is not None for cell in line.cells)]
        common = [text for text in compared[0].differs if all(text in o.differs for o in compared)] if compared else []
        notes += [f"Unlike the paper, all lines: {'; '.join(common)}."] if common else []
        for line in self.lines:
            if own := [text for text in line.differs if text not in common]:
                notes.append(f"Unlike the paper, {line.label}: {'; '.join(own)}.")
        return notes + list(self.notes)


@dataclass(frozen=True)
class Layout:
    """A table as data: its lines, its columns, and for each of both the entries that the cell is the mean of.

    Entries have the columns seed, stream, value, run and row. ``cells`` are those that are no means.
    """

    kind: str  # of the table: the first word of its name
    title: str
    setting: Setting
    lines: Sequence[RunGroup]
    columns: Sequence[Column]
    entries: Mapping[tuple[int, str], pd.DataFrame] = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    published: PublishedTable | None = None
    corner: str = "method"
    detail: str = ""  # after the kind, in the name
    order: str = ""  # the column that sorts the lines, the largest number first
    notes: Sequence[str] = ()

    def build(self) -> Table:
        """Return the table, without lines that have no number; published numbers are beside comparable cells."""
        cells, columns = pivot(self.entries) | self.cells, tuple(self.columns)
        lines, paper = [], self.published
        streams = {column.key: self._count_streams(column.key) for column in columns} if paper else {}
        for number, one in enumerate(self.lines):
            theirs = paper.find(one.first.spec) if paper and not one.key.watch else None
            own, rows = [], dict[str, Row]()
            for column in columns:
                cell = cells.get((number, column.key), Cell())
                if paper and theirs and column.key in theirs.cells and paper.covers(column.key, streams[column.key]):
                    cell = replace(cell, published=theirs.value(column.key))
                    entries = self.entries.get((number, column.key))
                    rows |= {} if entries is None else {row.run: row for row in entries["row"]}
                own.append(cell)
            differs = [find_differences(row, paper, theirs) for row in rows.values()] if paper and theirs else []
            texts = tuple(dict.fromkeys(text for texts in differs for text in texts))
            if any(cell.value is not None for cell in own):
                lines.append(Line(one.label, tuple(own), texts, one.kind, one.first.spec, bool(one.key.watch)))
        if self.order:
            place = [column.key for column in columns].index(self.order)
            found = pd.Series([line.cells[place].value for line in lines], dtype=float)
            lines = [lines[number] for number in found.sort_values(ascending=False, kind="stable").index]
        shown = paper if any(cell.published is not None for line in lines for cell in line.cells) else None
        title = f"{self.title}: {self.setting.describe()}"
        return Table(self.name, title, columns, tuple(lines), self.corner, shown, tuple(self.notes))

    @property
    def name(self) -> str:
        """The name of the table, safe as that of a file."""
        setting = self.setting
        parts = [self.kind, self.detail, setting.dataset, setting.backbone]
        parts += ["" if "{" in setting.prompts else setting.prompts, f"s{setting.severity}"]
        parts += ["" if setting.stream is StreamKind.DOMAIN else setting.stream.value]
        parts += ["" if setting.order == SHUFFLE else setting.order]
        return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(filter(None, parts))).strip("-").lower()

    def _count_streams(self, key: str) -> int:
        """Return the number of streams that a column is the mean of."""
        return max((own["stream"].nunique() for (_, column), own in self.entries.items() if column == key), default=0)


def pivot(entries: Mapping[tuple[int, str], pd.DataFrame]) -> Cells:
    """Return the cell of every line and column that has entries: the mean over streams, then over seeds.

    Of several runs on one stream the last with a value counts. A seed that lacks a value on a stream is left out.
    """
    frames = [own.assign(line=line, column=column) for (line, column), own in entries.items()]
    if not frames:
        return {}
    frame, cell = pd.concat(frames, ignore_index=True).astype({"value": float}), ["line", "column"]
    values = frame.groupby([*cell, "seed", "stream"], sort=False)["value"].last()
    seeds = values.groupby([*cell, "seed"], sort=False).agg(["sum", "count", "size"])
    whole = seeds[seeds["count"] == seeds["size"]]
    means = (whole["sum"] / whole["size"]).groupby(cell, sort=False).agg(["mean", "std", "count"])
    runs = frame.groupby(cell, sort=False)["run"].unique()
    found = {}
    for key, mean, sd, count in means.itertuples(name=None):
        spread = round(sd, 12) if count > 1 else None  # equal numbers have a spread of 0
        found[cast("tuple[int, str]", key)] = Cell(mean, spread, count, None, tuple(runs[key]))
    return found


def fill(line: int, values: Mapping[str, float | None], rows: Iterable[Row]) -> Cells:
    """Return the cells of a line with numbers that are made of all of some runs, by column."""
    used = {row.run: row for row in rows}
    seeds = len({row.seed for row in used.values()})
    return {(line, key): Cell(value, seeds=seeds, runs=tuple(used)) for key, value in values.items()}


def name_apart(items: Iterable[Named]) -> list[Named]:
    """Return tables or drawings under names of their own: that of a second one with the same name ends with -2."""
    named: dict[str, Named] = {}
    for item in items:
        name, number = item.name, 1
        while name in named:
            name = f"{item.name}-{(number := number + 1)}"
        named[name] = replace(item, name=name)
    return list(named.values())
