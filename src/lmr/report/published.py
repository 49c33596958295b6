"""The numbers that the paper publishes: every cell of its six tables as printed, each with its protocol.

``published.json`` keeps what is printed. Its ``protocol`` holds for a whole table, a row's ``batch_size`` for the row.
``null`` marks what the paper does not say; what it implies is listed under ``implied``. Where columns are datasets,
``images`` is given for each of them. ``figures`` describes the figures of the paper, ``names`` its short column heads.

This module imports nothing heavy: the help of ``lmr reproduce`` lists the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError
from lmr.core.spec import suggest

PATH = Path(__file__).with_name("published.json")
AVERAGE = "average"
FIGURE = "figure-"  # before the number of a figure, in a name
COMPONENTS = "ablation-components"  # its columns are means over corruptions
PAPER_CORRUPTIONS = 15
VARIANTS = ("imagenet-a", "imagenet-r", "imagenet-sketch", "imagenet-v2")


@dataclass(frozen=True)
class PublishedRow:
    """A row of a published table: the name as printed, the spec that runs it here, and its cells as printed."""

    printed: str
    spec: str
    batch_size: int | None
    cells: dict[str, str]

    def value(self, column: str) -> float | None:
        """Return the number of a cell, None where the table has no such column."""
        return read_number(self.cells[column]) if column in self.cells else None


@dataclass(frozen=True)
class PublishedTable:
    """A published table, or the part of one that is about one dataset."""

    name: str
    source: str  # the table's label in the paper
    title: str
    protocol: dict[str, Any]
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]

    def describe(self, column: str | None = None) -> dict[str, Any]:
        """Return the protocol of a column, with its dataset and the number of images."""
        if self.protocol["dataset"] is not None:
            return dict(self.protocol)
        if column == AVERAGE:
            return {**self.protocol, "dataset": list(self.columns[:-1])}
        return {**self.protocol, "dataset": column, "images": self.protocol["images"].get(column)}

    def find(self, spec: str) -> PublishedRow | None:
        """Return the row of the same method with the same parts switched on, or None."""
        from lmr.report.traits import identify_parts  # knows all methods, and so imports torch

        wanted = identify_parts(spec)
        return next((row for row in self.rows if identify_parts(row.spec) == wanted), None)

    def covers(self, column: str, streams: int) -> bool:
        """Return True if a mean over so many streams is comparable with a column: an average is over all others."""
        if column == AVERAGE:
            return streams == len(self.columns) - 1
        return self.name != COMPONENTS or streams == PAPER_CORRUPTIONS

    def cite(self) -> str:
        """Return a phrase that says where the numbers are from."""
        return f"the paper's table {self.source} ({self.title})"


@cache
def read_paper() -> Mapping[str, Any]:
    """Return the content of ``published.json``: ``paper``, ``names``, ``figures`` and ``tables``."""
    content: Mapping[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return content


def list_table_names() -> list[str]:
    """Return the names of the published tables."""
    return [table["name"] for table in read_paper()["tables"]]


def list_figure_names() -> list[str]:
    """Return the names of the figures that are made of runs."""
    return [f"{FIGURE}{number}" for number in read_paper()["figures"]]


def shorten(column: str) -> str:
    """Return the paper's short name of a column, or the column itself."""
    return str(read_paper()["names"].get(column, column))


@cache
def read_tables() -> dict[str, PublishedTable]:
    """Return all published tables by name."""
    tables = {}
    for content in read_paper()["tables"]:
        columns = tuple(content["columns"])
        rows = tuple(
            PublishedRow(row["printed"], row["spec"], row["batch_size"], dict(zip(columns, row["values"], strict=True)))
            for row in content["rows"]
        )
        tables[content["name"]] = PublishedTable(
            content["name"], content["source"], content["title"], content["protocol"], columns, rows
        )
    return tables


def find_published(name: str) -> PublishedTable:
    """Return the published table of a name; the error for an unknown name suggests the nearest one."""
    tables = read_tables()
    if name not in tables:
        raise LmrError(
            f"The paper has no table or figure {name!r}.{suggest(name, [*tables, *list_figure_names()])} Its tables "
            f"are: {', '.join(sorted(tables))}; its figures: {', '.join(list_figure_names())}."
        )
    return tables[name]


def read_number(printed: str) -> float:
    """Return the value of a printed number; ``18.0K`` is 18000."""
    return float(printed[:-1]) * 1000 if printed.endswith("K") else float(printed)
