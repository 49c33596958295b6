"""The measurements of a run, compared with the aims, as aligned text, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.cost.entries import Entry
from lab.cost.settings import AIMED_MODEL, AIMED_SETTING, AIMS, Aim
from lmr.bench.table import format_table
from lmr.core.files import write_atomically

FILES = ("cost.txt", "cost.md", "cost.json")

LEGEND = """\
past gate: share of the samples that pass the gate of the method and take part in the backward.
ms/image: median over the rounds, followed by the smallest and the largest; the entries alternate in one process.
peak MB: how far one step raises the peak memory of a fresh process above the loaded model, without the warm-up.
trainable: parameters that the step adapts. forwards: time divided by the time of our plain forward.
limit ms: time of the necessary matrix products at the rate measured in the same run; reached: limit ms / ms/image."""


@dataclass(frozen=True)
class Measurement:
    """The measured seconds and bytes of an entry. ``forward_ms`` and ``rate`` are those of the same run."""

    entry: Entry
    spec: str
    batch_size: int
    classes: int
    images: int  # per step
    seconds: tuple[float, ...]  # of every measured step, in the order of the rounds
    peak_bytes: int | None
    trainable: int
    flops: int | None  # of one step
    gate_share: float | None
    rate: float | None  # operations per second of this machine
    forward_ms: float = math.nan  # per image, the median of our plain forward

    @property
    def each_ms(self) -> list[float]:
        """Milliseconds per image of every step."""
        return [1000 * seconds / self.images for seconds in self.seconds]

    @property
    def median_ms(self) -> float:
        """Milliseconds per image."""
        return statistics.median(self.each_ms)

    @property
    def forwards(self) -> float:
        """Time divided by the time of our plain forward."""
        return self.median_ms / self.forward_ms

    @property
    def limit_ms(self) -> float | None:
        """Milliseconds per image if the needed operations ran at the machine's rate and nothing else took time."""
        if self.flops is None or self.rate is None:
            return None
        return 1000 * self.flops / self.rate / self.images

    @property
    def reached(self) -> float | None:
        """The share of the arithmetic limit that was reached."""
        return None if self.limit_ms is None else self.limit_ms / self.median_ms

    def to_json(self) -> dict[str, Any]:
        """Return everything, measured and derived."""
        times = {"median_ms": self.median_ms, "low_ms": min(self.each_ms), "high_ms": max(self.each_ms)}
        derived = {"forwards": self.forwards, "limit_ms": self.limit_ms, "reached": self.reached}
        return {"name": self.entry.name, **dataclasses.asdict(self), **times, **derived}


@dataclass(frozen=True)
class Verdict:
    """An aim compared with the measured ratio of medians, and the range of the ratios within rounds."""

    aim: Aim
    value: float
    low: float | None
    high: float | None
    other: str  # the setting of the aim, if this run has another one

    @property
    def result(self) -> str:
        """The word "met" or "missed", or the setting of an aim that does not apply."""
        if self.other:
            return self.other
        return "met" if self.value <= self.aim.limit else "missed"


def judge_aims(rows: Sequence[Measurement], model: str = "") -> list[Verdict]:
    """Return a verdict on every aim whose entries were measured.

    ``model`` names the model of the aims if this run has another one.
    """
    found: dict[str, Measurement] = {}
    for row in rows:
        found.setdefault(row.entry.key, row)
    verdicts = []
    for aim in AIMS:
        top, bottom = found.get(aim.top), found.get(aim.bottom) if aim.bottom else None
        if top is None or (aim.bottom and bottom is None):
            continue
        other = f"for {model}" if model else _compare_setting(aim, top)
        if aim.quantity == "time" and bottom is not None:
            ratios = [a / b for a, b in zip(top.each_ms, bottom.each_ms, strict=True)]
            verdicts.append(Verdict(aim, top.median_ms / bottom.median_ms, min(ratios), max(ratios), other))
        elif bottom is not None and top.peak_bytes is not None and bottom.peak_bytes:
            verdicts.append(Verdict(aim, top.peak_bytes / bottom.peak_bytes, None, None, other))
        elif bottom is None and top.peak_bytes is not None:
            verdicts.append(Verdict(aim, top.peak_bytes, None, None, other))
    return verdicts


def _compare_setting(aim: Aim, row: Measurement) -> str:
    """Return the setting of the aim where it differs from that of this run."""
    other = []
    if aim.batch_size is not None and row.batch_size != aim.batch_size:
        other.append(f"batch size {aim.batch_size}")
    if aim.streams is not None and row.entry.streams != aim.streams:
        other.append(f"{aim.streams} streams")
    if aim.classes is not None and row.classes != aim.classes:
        other.append(f"{aim.classes} classes")
    return f"for {', '.join(other)}" if other else ""


@dataclass(frozen=True)
class CostTable:
    """All rows of one batch size, the machine's rate of matrix products, notes, and implausible results."""

    batch_size: int
    rows: list[Measurement]
    rate: float | None
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    aimed: bool = True  # whether the model has the size that the aims were set for

    @property
    def remarks(self) -> list[str]:
        """The lines below the rows."""
        return [*self.notes, *self.doubts]

    @property
    def verdicts(self) -> list[Verdict]:
        """The aims compared with the measurements."""
        return judge_aims(self.rows, "" if self.aimed else AIMED_MODEL)


@dataclass(frozen=True)
class CostReport:
    """All tables, with where, when and how they were measured."""

    protocol: dict[str, Any]
    tables: list[CostTable]

    def to_text(self) -> str:
        """Return aligned columns, for a terminal."""
        return self._write(_describe(self.protocol), format_table)

    def to_markdown(self) -> str:
        """Return Markdown."""
        facts = "\n".join(f"* {line}" for line in _describe(self.protocol).splitlines())
        return self._write(f"# What a step costs\n\n{facts}", _mark, "## ", "* ")

    def _write(self, head: str, draw: Callable[[list[list[str]]], str], title: str = "", item: str = "") -> str:
        parts = [head]
        for table in self.tables:
            rate = "" if table.rate is None else f"; matrix products at {table.rate / 1e9:.0f} GFLOP/s"
            parts += [f"{title}Batch size {table.batch_size}{rate}", draw(_list_rows(table.rows))]
            parts += ["\n".join(f"{item}{remark}" for remark in table.remarks)] * bool(table.remarks)
            if table.verdicts:
                parts += [f"Aims, set for {AIMED_SETTING}:", draw(_list_verdicts(table.verdicts))]
        return "\n\n".join([*parts, LEGEND]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return every number, measured and derived."""
        tables = []
        for table in self.tables:
            verdicts = [dataclasses.asdict(verdict) | {"result": verdict.result} for verdict in table.verdicts]
            rows = [row.to_json() for row in table.rows]
            facts: dict[str, Any] = {"batch_size": table.batch_size, "flops_per_second": table.rate}
            facts |= {"notes": table.notes, "doubts": table.doubts}
            tables.append({**facts, "rows": rows, "aims": verdicts})
        return {"protocol": self.protocol, "tables": tables}

    def save(self, folder: Path) -> None:
        """Write the three files, each atomically."""
        contents = self.to_text(), self.to_markdown(), json.dumps(self.to_json(), indent=1) + "\n"
        for name, content in zip(FILES, contents, strict=True):
            write_atomically(folder / name, content.encode())


def _mark(lines: Sequence[Sequence[str]]) -> str:
    """Return cells as a Markdown table."""
    marked = ["| " + " | ".join(line) + " |" for line in lines]
    marked.insert(1, "|" + "|".join([":--", *["--:"] * (len(lines[0]) - 1)]) + "|")
    return "\n".join(marked)


def _describe(protocol: dict[str, Any]) -> str:
    """Return the protocol, one fact per line."""
    return "\n".join(f"{key.replace('_', ' ')}: {value}" for key, value in protocol.items())


def _list_rows(rows: Sequence[Measurement]) -> list[list[str]]:
    """Return the main table as cells."""
    lines = [["entry", "past gate", "ms/image", "min - max", "peak MB", "trainable", "forwards", "limit ms", "reached"]]
    for row in rows:
        digits = _count_digits(row.median_ms)
        low, high = (f"{bound:.{digits}f}" for bound in (min(row.each_ms), max(row.each_ms)))
        line = [row.entry.name, _show(row.gate_share, "{:.0%}"), f"{row.median_ms:.{digits}f}", f"{low} - {high}"]
        line += [_show(None if row.peak_bytes is None else row.peak_bytes / 1e6, "{:.0f}"), f"{row.trainable:,}"]
        line += [
            f"{row.forwards:.2f}",
            _show(row.limit_ms, f"{{:.{_count_digits(row.limit_ms)}f}}"),
            _show(row.reached, "{:.0%}"),
        ]
        lines.append(line)
    return lines


def _list_verdicts(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Return the aims as cells; bytes of one entry alone are shown in GB."""
    lines = [["ratio", "aim", "measured", "in the rounds", ""]]
    for verdict in verdicts:
        unit = 1.0 if verdict.aim.bottom else 1e9
        spread = "" if verdict.low is None or verdict.high is None else f"{verdict.low:.2f} - {verdict.high:.2f}"
        numbers = [f"<= {verdict.aim.limit / unit:g}", f"{verdict.value / unit:.2f}", spread]
        lines.append([verdict.aim.what, *numbers, verdict.result])
    return lines


def _count_digits(milliseconds: float | None) -> int:
    """Return the number of decimals to show."""
    return 1 if milliseconds is not None and milliseconds >= 10 else 3


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
