"""The paper's numbers: every cell of its six tables, as printed, each with the protocol it was made under.

``reference.json`` keeps what is printed; its ``protocol`` holds for a whole table, a row's ``batch_size`` for the row.
``None`` is what the paper does not say; what it implies without saying it is listed under ``implied``. Where columns
are datasets, ``images`` is given for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.method import list_arguments
from lmr.core.registry import find_method
from lmr.core.spec import parse_spec, suggest
from lmr.models.known_models import OPENAI_MODELS

PATH = Path(__file__).with_name("published.json")
AVERAGE = "average"
SINGLE_PROMPT = "a photo of a {}."
PRESETS = {
    "cifar10-c": "cifar10-c",
    "cifar100-c": "cifar100-c",
    "imagenet-c-5000": "imagenet",
    "imagenet-c": "imagenet",
}
# Other data that a published number may stand beside, with the difference said.
RELATED = {"imagenet-c": "imagenet-c-5000"}


@dataclass(frozen=True)
class PublishedRow:
    """One line of a published table: the name as printed, what runs it here, and its cells as printed."""

    printed: str
    spec: str
    batch_size: int | None
    cells: dict[str, str]

    @property
    def method(self) -> str:
        """The registered name of the method."""
        return parse_spec(self.spec)[0]

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
        """The row of a method, or, for the parts of LMR, of the same parts."""
        wanted = _identify(spec)
        return next((row for row in self.rows if _identify(row.spec) == wanted), None)


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number with all that is known about it."""

    table: str
    source: str
    row: str
    column: str
    printed: str
    value: float
    protocol: dict[str, Any]


@cache
def _read() -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return content


def describe_paper() -> Mapping[str, Any]:
    """Title and DOI, notes, what is implied, and where the paper disagrees with itself."""
    paper: Mapping[str, Any] = _read()["paper"]
    return paper


@cache
def read_reference() -> dict[str, PublishedTable]:
    """All published tables by name."""
    tables = {}
    for content in _read()["tables"]:
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
    """The published table of a name; an unknown one is answered with the nearest."""
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
    """The published table of 15 corruptions that runs on this dataset stand beside.

    Among several of the same dataset the one with the same backbone and prompts is taken, else the main one.
    """
    wanted = RELATED.get(dataset, dataset)
    tables = [t for t in read_reference().values() if t.protocol["dataset"] == wanted and AVERAGE in t.columns]

    def agrees(table: PublishedTable) -> tuple[bool, bool]:
        same = name_backbone(backbone) == table.protocol["backbone"]
        return same, name_prompts(prompts) == table.protocol["prompts"]

    return max(tables, key=lambda table: sum(agrees(table)), default=None)


def find_differences(row: Row, table: PublishedTable, published: PublishedRow, column: str | None = None) -> list[str]:
    """Where the protocol of a run differs from that of the published number beside it, each as a phrase."""
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
    """Pictures that are known to be others than the paper's; what nobody could check is no difference."""
    corruptions, pictures = (str(protocol.get(key, "")) for key in ("corruptions", "pictures"))
    found = ["data made by lmr (paper: official files)"] if corruptions.startswith("made by lmr") else []
    found += ["not the official files"] if corruptions.startswith("not the official") else []
    return found + (["not the official test set"] if pictures.startswith("not the official") else [])


def _compare_arguments(spec: str, published: str, dataset: str) -> list[str]:
    """Where the arguments differ from those the paper's text gives for the dataset."""
    try:
        ours, theirs = expand_spec(spec), expand_spec(published, PRESETS.get(dataset))
    except LmrError:  # a method of the user's own, or one that has gone
        return []
    return [f"{key} {ours[key]} (paper: {theirs[key]})" for key in ours if key in theirs and ours[key] != theirs[key]]


def expand_spec(spec: str, preset: str | None = None) -> dict[str, Any]:
    """Every argument of a spec with its value: what it says, else what its preset says, else the default."""
    name, values = parse_spec(spec)
    method = find_method(name)
    preset = values.pop("preset", None) or preset
    chosen = method.presets[preset].values if preset in method.presets else {}
    return {key: getattr(method, key) for key in list_arguments(method)} | chosen | values


def name_backbone(name: str) -> str:
    """One name for each of OpenAI's models; others keep theirs."""
    short = name.replace("/", "-") if name.startswith("ViT") else name
    return OPENAI_MODELS[short][0] if short in OPENAI_MODELS else name


def name_prompts(name: str) -> str:
    """One name for each prompt set of the paper; others keep theirs."""
    return "cupl" if Path(name).stem.lower().startswith("cupl") else name


def _identify(spec: str) -> tuple[str, list[str]]:
    """The method, and which parts of LMR are off."""
    name, values = parse_spec(spec)
    return name, [part for part in ("pmr", "am", "bc") if name == "lmr" and not values.get(part, True)]
