"""A table before it has a format: columns, lines of cells, and which cells are best."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from lmr.report.published import PublishedTable
from lmr.report.traits import LineKind


class TableKind(enum.Enum):
    """The subject of a table; the values begin the names of its files."""

    ACCURACY = "accuracy"
    PARTS = "parts"
    GAINS = "gains"
    MEASURES = "measures"
    EFFICIENCY = "efficiency"
    SEVERITIES = "severities"
    SWEEP = "sweep"
    VARIANTS = "imagenet-variants"
    COMPONENTS = "ablation-components"
    LEADERBOARD = "leaderboard"
    LIFE = "life"
    SKEW = "skew"


def find_kind(name: str) -> TableKind | None:
    """Return the kind of table whose files have such a name, None for other names."""
    return next((kind for kind in TableKind if name == kind.value or name.startswith(f"{kind.value}-")), None)


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
    """A column: its head, the digits of its numbers, and whether more is better (None: neither)."""

    key: str
    head: str
    digits: int = 2
    higher: bool | None = True


@dataclass(frozen=True)
class Line:
    """A line: a method and its cells, the differences to the published protocol, and how it was run."""

    label: str
    cells: tuple[Cell, ...]
    differs: tuple[str, ...] = ()
    protocol: tuple[tuple[str, str], ...] = ()
    command: str = ""
    kind: LineKind = LineKind.OTHER
    spec: str = ""
    watched: bool = False

    @property
    def has_published(self) -> bool:
        """True if any number has a published one to compare with."""
        return any(cell.published is not None for cell in self.cells)


@dataclass(frozen=True)
class Table:
    """A table that can be written in any format."""

    kind: TableKind
    name: str  # of its files
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    corner: str = "method"
    published: PublishedTable | None = None  # where the published numbers are from
    notes: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()  # sentences above it

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
        compared = [line.differs for line in self.lines if line.has_published]
        common = [text for text in compared[0] if all(text in o for o in compared)] if len(compared) > 1 else []
        notes += [f"All lines differ from the paper: {'; '.join(common)}."] if common else []
        for line in self.lines:
            if own := [text for text in line.differs if text not in common]:
                notes.append(f"{line.label} differs from the paper: {'; '.join(own)}.")
        return notes + list(self.notes)


def name_apart(tables: Sequence[Table]) -> list[Table]:
    """Return the tables under names of their own: those of a second table with the same name end with -2."""
    named: list[Table] = []
    for table in tables:
        taken = {other.name for other in named}
        names = (table.name, *(f"{table.name}-{number}" for number in range(2, len(tables) + 1)))
        named.append(replace(table, name=next(name for name in names if name not in taken)))
    return named


def make_cell(by_seed: pd.Series[float], runs: Iterable[str] = (), published: float | None = None) -> Cell:
    """Return a cell from one number per seed: their mean, and with several their standard deviation."""
    if by_seed.empty:
        return Cell(published=published)
    sd = round(float(by_seed.std()), 12) if len(by_seed) > 1 else None  # equal numbers have a spread of 0
    return Cell(float(by_seed.mean()), sd, len(by_seed), published, tuple(dict.fromkeys(runs)))


def show_number(value: float | None, digits: int, sign: bool = False) -> str:
    """Return a number with its digits, a dash where there is none; minus is a hyphen so that it can be read back."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text if float(text) else text.replace("-", "+" if sign else "")
