"""What a table is before it has a format: cells with their published values, lines, columns, and who is best."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lmr.report.paper.paper_tables import PublishedTable
from lmr.report.row_traits import LineKind, StreamKind
from lmr.report.series import SHUFFLE, Setting
from lmr.report.statistics import summarise


class TableKind(enum.Enum):
    """What a table is about; the values begin the names of its files."""

    ACCURACY = "accuracy"
    PARTS = "parts"
    GAINS = "gains"
    MEASURES = "measures"
    EFFICIENCY = "efficiency"
    SEVERITIES = "severities"
    SWEEP = "sweep"
    VARIANTS = "imagenet-variants"
    COMPONENTS = "ablation-components"
    LIFE = "life"


@dataclass(frozen=True)
class Cell:
    """A number, its spread over seeds, the published number to compare with, and the runs it comes from."""

    value: float | None = None
    sd: float | None = None
    seeds: int = 0
    published: float | None = None
    runs: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus published."""
        return None if self.value is None or self.published is None else self.value - self.published


def make_cell(by_seed: Mapping[int, float], published: float | None = None, runs: tuple[str, ...] = ()) -> Cell:
    """A cell from one number per seed: their mean, and with several their standard deviation."""
    if not by_seed:
        return Cell(published=published)
    spread = summarise(list(by_seed.values()))
    return Cell(spread.mean, None if math.isnan(spread.sd) else spread.sd, spread.count, published, runs)


@dataclass(frozen=True)
class Column:
    """A column: its head, how many digits its numbers have, and whether more is better (None: neither)."""

    key: str
    head: str
    digits: int = 2
    higher: bool | None = True


@dataclass(frozen=True)
class Line:
    """One line: a method and its cells; where its protocol differs from the published one, and how it was run."""

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
        """Whether any of its numbers has a published one to compare with."""
        return any(cell.published is not None for cell in self.cells)

    @property
    def has_spread(self) -> bool:
        """Whether any number is a mean over seeds."""
        return any(cell.sd is not None for cell in self.cells)


@dataclass(frozen=True)
class ReportTable:
    """A table ready to be written in any format."""

    kind: TableKind
    name: str  # of its files
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    corner: str = "method"
    published: PublishedTable | None = None  # where the published numbers are from
    notes: tuple[str, ...] = ()

    def rank(self) -> list[list[int]]:
        """1 for the best of every column, 2 for the second best, 0 for others: [lines][columns]. Ties share a rank.

        Numbers count as they are shown: two that look the same are the same.
        """
        ranks = [[0] * len(self.columns) for _ in self.lines]
        for j, column in enumerate(self.columns):
            values = [line.cells[j].value for line in self.lines]
            shown = [None if v is None else round(v, column.digits) for v in values]
            known = {v for v in shown if v is not None}
            if column.higher is None or sum(v is not None for v in shown) < 2:
                continue
            order = sorted(known, reverse=column.higher)
            for i, value in enumerate(shown):
                if value in order[:2]:
                    ranks[i][j] = 1 + order.index(value)
            if sum(row[j] == 1 for row in ranks) > 1:  # two share the first rank: there is no second
                for row in ranks:
                    row[j] = row[j] % 2
        return ranks


def show_number(value: float | None, digits: int, sign: bool = False) -> str:
    """A number with its digits, a dash where there is none; minus is a hyphen so that it can be read back."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text if float(text) else text.replace("-", "+" if sign else "")


def name_table(kind: TableKind, setting: Setting, detail: str = "") -> str:
    """The name of a table's files: what it is about, in characters that every file system accepts."""
    parts = [kind.value, detail, setting.dataset, setting.backbone]
    parts += ["" if "{" in setting.prompts else setting.prompts, f"s{setting.severity}"]
    parts += ["" if setting.stream is StreamKind.DOMAIN else setting.stream.value]
    parts += ["" if setting.order == SHUFFLE else setting.order]
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(filter(None, parts))).strip("-").lower()


def find_kind(name: str) -> TableKind | None:
    """The kind of table whose files have such a name, None for names that no table has."""
    return next((kind for kind in TableKind if name == kind.value or name.startswith(f"{kind.value}-")), None)
