"""The paper's numbers: every cell of its six tables, as printed, each with the protocol it was measured under.

``published.json`` keeps what is printed; its ``protocol`` holds for a whole table, a row's ``batch_size`` for the row.
``None`` is what the paper does not say; what it implies without saying it is listed under ``implied``. Where columns
are datasets, ``images`` is given for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.spec import suggest
from lmr.data.provenance import Provenance, read_origin
from lmr.models.catalog import OPENAI_MODELS
from lmr.report.paper.paper_file import read_paper_file
from lmr.report.row_traits import expand_spec, list_parts_off, read_spec

AVERAGE = "average"
SINGLE_PROMPT = "a photo of a {}."
PRESETS = {  # whose values methods use on a dataset
    "cifar10-c": "cifar10-c",
    "photo-c": "cifar10-c",  # a part of the same images
    "cifar100-c": "cifar100-c",
    "imagenet-c-5000": "imagenet",
    "imagenet-c": "imagenet",
}
# Other data that a published number is shown next to, with the difference stated.
RELATED = {"imagenet-c": "imagenet-c-5000"}


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table: the name as printed, the spec that runs it here, and its cells as printed."""

    printed: str
    spec: str
    batch_size: int | None
    cells: dict[str, str]

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return read_spec(self.spec)[0]

    def value(self, column: str) -> float | None:
        """The number of a cell, None where the table has no such column; 18.0K is 18000."""
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
        """The protocol of a column: its dataset, and how many images that has."""
        if self.protocol["dataset"] is not None:
            return dict(self.protocol)
        if column == AVERAGE:
            return {**self.protocol, "dataset": list(self.columns[:-1])}
        return {**self.protocol, "dataset": column, "images": self.protocol["images"].get(column)}

    def find(self, spec: str) -> PublishedRow | None:
        """The row of a method with the same parts switched on."""
        wanted = _identify(spec)
        return next((row for row in self.rows if _identify(row.spec) == wanted), None)


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number with its table, row, column and protocol."""

    table: str
    source: str
    row: str
    column: str
    printed: str
    value: float
    protocol: dict[str, Any]


def describe_paper() -> Mapping[str, Any]:
    """Title and DOI, notes, implied values, and where the paper contradicts itself."""
    paper: Mapping[str, Any] = read_paper_file()["paper"]
    return paper


@cache
def read_reference() -> dict[str, PublishedTable]:
    """All published tables by name."""
    tables = {}
    for content in read_paper_file()["tables"]:
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
    """The published table of a name; for an unknown name the error suggests the nearest one."""
    tables = read_reference()
    if name not in tables:
        raise LmrError(
            f"The paper has no table {name!r}.{suggest(name, tables)} Its tables are: {', '.join(sorted(tables))}."
        )
    return tables[name]


def list_numbers() -> Iterator[PublishedNumber]:
    """Every printed number with its table, row, column, source and protocol."""
    for table in read_reference().values():
        for row in table.rows:
            for column, printed in row.cells.items():
                protocol = {**table.describe(column), "batch_size": row.batch_size}
                yield PublishedNumber(
                    table.name, table.source, row.printed, column, printed, read_number(printed), protocol
                )


def read_number(printed: str) -> float:
    """``18.0K`` is 18000."""
    return float(printed[:-1]) * 1000 if printed.endswith("K") else float(printed)


def match_corruption_table(dataset: str, backbone: str, prompts: str) -> PublishedTable | None:
    """The published table of 15 corruptions to compare runs on this dataset with.

    Of several tables on one dataset, the one with the same backbone and prompts is taken, else the main one.
    """
    wanted = RELATED.get(dataset, dataset)
    tables = [t for t in read_reference().values() if t.protocol["dataset"] == wanted and AVERAGE in t.columns]

    def agrees(table: PublishedTable) -> tuple[bool, bool]:
        same = name_backbone(backbone) == table.protocol["backbone"]
        return same, name_prompts(prompts) == table.protocol["prompts"]

    return max(tables, key=lambda table: sum(agrees(table)), default=None)


def find_differences(row: Row, table: PublishedTable, published: PublishedRow, column: str | None = None) -> list[str]:
    """Where the protocol of a run differs from that of a published number, each difference as a phrase."""
    implied = describe_paper()["implied"]
    ours: dict[str, Any] = {
        "dataset": row.dataset,
        "backbone": name_backbone(row.backbone.get("name", "")),
        "images": row.images,
        "severity": row.severity,
        "batch_size": row.batch_size,
        "prompts": name_prompts(str(row.prompts.get("name", ""))),
        "order": row.order.get("kind"),
        "reset": row.reset,
    }
    theirs = {**table.describe(column), "batch_size": published.batch_size}
    found = []
    for key, value in ours.items():
        if theirs.get(key) is not None and value != theirs[key]:
            note = ", implied" if key in implied else ""
            found.append(f"{key.replace('_', ' ')} {value} (paper: {theirs[key]}{note})")
    return found + _compare_data(row.protocol) + _compare_arguments(row.spec, published.spec, str(theirs["dataset"]))


def _compare_data(protocol: Mapping[str, str]) -> list[str]:
    """Images that are known to differ from the paper's; unchecked data do not count as different."""
    origin = read_origin(protocol)
    found = ["data made by lmr (paper: official files)"] if origin.corruptions is Provenance.MADE else []
    found += ["not the official files"] if origin.corruptions is Provenance.OTHER else []
    return found + (["not the official test set"] if origin.images is Provenance.OTHER else [])


def _compare_arguments(spec: str, published: str, dataset: str) -> list[str]:
    """Where the arguments differ from those the paper's text gives for the dataset."""
    try:
        ours, theirs = expand_spec(spec), expand_spec(published, PRESETS.get(dataset))
    except LmrError:  # a method that is not loaded
        return []
    return [f"{key} {ours[key]} (paper: {theirs[key]})" for key in ours if key in theirs and ours[key] != theirs[key]]


def name_backbone(name: str) -> str:
    """One name for each of OpenAI's models; others keep theirs."""
    short = name.replace("/", "-") if name.startswith("ViT") else name
    return OPENAI_MODELS.get(short, name)


def name_prompts(name: str) -> str:
    """One name for each prompt set of the paper; others keep theirs."""
    return "cupl" if Path(name).stem.lower().startswith("cupl") else name


def is_printed_name(label: str, spec: str) -> bool:
    """Whether a label is what a published table prints for this method with these parts."""
    rows = (table.find(spec) for table in read_reference().values())
    return any(row is not None and row.printed == label for row in rows)


def _identify(spec: str) -> tuple[str, tuple[str, ...]]:
    """The method, and which of its parts are off."""
    return read_spec(spec)[0], list_parts_off(spec)
