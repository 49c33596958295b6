"""The results of ``lmr tune``: the scores and answers of every entry, kept as files and shown as tables."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lmr.bench.table import format_table
from lmr.bench.tune.criteria import RULE, recommend
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.core.foreign_text import write_cell
from lmr.core.spec import parse_spec


@dataclass(frozen=True)
class EntryResult:
    """An entry: its scores by criterion, and the label it gave to every image."""

    spec: str
    scores: dict[str, float]
    labels: list[int]


@dataclass(frozen=True)
class TuneResult:
    """A stream: its entries, the default first, and the places of the images that could be read."""

    source: str
    entries: list[EntryResult]
    places: list[int]
    unreadable: int
    classes: int

    @cached_property
    def scores(self) -> list[dict[str, float]]:
        """The scores of every entry, by criterion."""
        return [entry.scores for entry in self.entries]

    @cached_property
    def recommended(self) -> int:
        """The number of the entry that the rule recommends."""
        return recommend(self.scores, self.classes)


def read_result(path: Path) -> TuneResult:
    """Read the result of a finished stream; a score that is null is NaN."""
    try:
        content = json.loads(path.read_text("utf-8"))
        for entry in content["entries"]:
            entry["scores"] = {key: math.nan if value is None else value for key, value in entry["scores"].items()}
        return TuneResult(**content | {"entries": [EntryResult(**entry) for entry in content["entries"]]})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LmrError(f"{str(path)!r} is damaged ({error}); remove it to measure that stream again.") from error


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    """Write a value atomically; numbers that are not finite become null."""
    write_atomically(path, f"{json.dumps(_hide_nan(content), indent=indent, allow_nan=False)}\n".encode())


def _hide_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hide_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hide_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_result(result: TuneResult) -> str:
    """Return the scores of all entries on one stream, the recommended one marked, and its spec."""
    names = list(result.scores[0])
    rows = [["", "entry", *names]]
    for number, (label, scores) in enumerate(zip(name_entries(result), result.scores, strict=True)):
        rows.append([">" if number == result.recommended else "", label, *(show(scores[name], 4) for name in names)])
    unreadable = f", {result.unreadable} more could not be read" if result.unreadable else ""
    chosen = result.entries[result.recommended].spec
    head, table = f"{result.source}: {len(result.places)} images{unreadable}", format_table(rows, texts=2)
    return f"{head}\n\n{table}\n\nRule: {RULE}\nRecommended: {chosen}"


def describe_result(result: TuneResult) -> dict[str, Any]:
    """Return a result in plain values, for files."""
    labels = name_entries(result)
    entries = [
        {"entry": label, "spec": one.spec, "recommended": number == result.recommended, "scores": one.scores}
        for number, (label, one) in enumerate(zip(labels, result.entries, strict=True))
    ]
    return {
        "source": result.source,
        "images": len(result.places),
        "unreadable": result.unreadable,
        "recommended": result.entries[result.recommended].spec,
        "default": result.entries[0].spec,
        "entries": entries,
    }


def format_csv(described: Sequence[Mapping[str, Any]]) -> str:
    """Return CSV with one line for every entry of every stream, from ``describe_result``."""
    rows = [
        {"source": write_cell(str(one["source"])), "images": one["images"]}
        | {key: value for key, value in entry.items() if key != "scores"}
        | entry["scores"]
        for one in described
        for entry in one["entries"]
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def name_entries(result: TuneResult) -> list[str]:
    """Return the arguments in which entries differ; with names of methods if these differ too."""
    parsed = [parse_spec(entry.spec) for entry in result.entries]
    several = len({name for name, _ in parsed}) > 1
    keys = dict.fromkeys(key for _, values in parsed for key in values)
    varied = [key for key in keys if len({repr(values.get(key)) for _, values in parsed}) > 1]
    labels = []
    for number, (name, values) in enumerate(parsed):
        label = ", ".join(f"{key}={values[key]}" for key in varied if key in values)
        label = f"{name}({label})" if several else label
        labels.append(label if number else f"{label} (default)")
    return labels


def show(value: float, digits: int) -> str:
    """Return a number with this many decimals, or "-" for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
