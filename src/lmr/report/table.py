"""A table before it has a format: columns, lines of cells, which cells are best; and the pivot that fills the cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pandas as pd

from lmr.report.published import PublishedTable
from lmr.report.traits import LineKind


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


@dataclass(frozen=True)
class Column:
    """A column: its head, the digits of its numbers, and whether more is better (None: neither).

    Numbers below ``least`` are shown as that: a p-value is never 0.
    """

    key: str
    head: str
    digits: int = 2
    higher: bool | None = True
    least: float | None = None

    def show(self, value: float | None, sign: bool = False) -> str:
        """Return a number of this column as text."""
        if self.least is not None and value is not None and value < self.least:
            return f"< {self.least:.{self.digits}f}"
        return show_number(value, self.digits, sign)


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


def pivot(entries: Mapping[tuple[int, str], pd.DataFrame]) -> dict[tuple[int, str], Cell]:
    """Return the cell of every line and column that has entries: the mean over streams, then over seeds.

    Entries have the columns seed, stream, value and run. Of several runs on one stream the last with a value counts.
    A seed without a value on one of its streams is left out.
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


def name_apart(tables: Iterable[Table]) -> list[Table]:
    """Return the tables under names of their own: those of a second table with the same name end with -2."""
    named: dict[str, Table] = {}
    for table in tables:
        name, number = table.name, 1
        while name in named:
            name = f"{table.name}-{(number := number + 1)}"
        named[name] = replace(table, name=name)
    return list(named.values())


def show_number(value: float | None, digits: int, sign: bool = False) -> str:
    """Return a number with its digits, a dash where there is none; minus is a hyphen so that it can be read back."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text if float(text) else text.replace("-", "+" if sign else "")


def fill(cells: Mapping[tuple[int, str], Cell], line: int, columns: Sequence[Column]) -> list[Cell]:
    """Return the cells of a line in the order of the columns, empty ones where there is no number."""
    return [cells.get((line, column.key), Cell()) for column in columns]
