"""The results as aligned text, as Markdown, and as JSON with every number and the protocol."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmr.bench.columns import align
from lmr.bench.cost.aims import Verdict, judge_aims
from lmr.bench.cost.measurement import Measurement
from lmr.bench.cost.settings import AIMED_MODEL, AIMED_SETTING
from lmr.core.files import write_atomically

FILES = ("cost.txt", "cost.md", "cost.json")

LEGEND = """\
past gate: share of the samples that pass the gate of the method and take part in the backward.
ms/image: median over the rounds, followed by the smallest and the largest; the contenders alternate in one process.
peak MB: how far one step raises the peak memory of a fresh process above the loaded model, without the warm-up.
trainable: parameters that the step adapts. forwards: time divided by the time of our plain forward.
limit ms: time of the necessary matrix products at the rate measured in the same run; reached: limit ms / ms/image."""


@dataclass(frozen=True)
class CostTable:
    """All rows of one batch size, the machine's rate of matrix products, notes, and what cannot be right."""

    batch_size: int
    rows: list[Measurement]
    rate: float | None
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    aimed: bool = True  # whether the model has the size that the aims were set for

    @property
    def remarks(self) -> list[str]:
        """What is said below the rows."""
        return [*self.notes, *self.doubts]

    @property
    def verdicts(self) -> list[Verdict]:
        """The aims compared with what was measured."""
        return judge_aims(self.rows, "" if self.aimed else AIMED_MODEL)


@dataclass(frozen=True)
class CostReport:
    """What was measured, and where, when and how."""

    protocol: dict[str, Any]
    tables: list[CostTable]

    def to_text(self) -> str:
        """Aligned columns, for a terminal."""
        parts = [_describe(self.protocol)]
        for table in self.tables:
            parts += [f"Batch size {table.batch_size}{_say_rate(table.rate)}", align(_list_rows(table.rows))]
            parts += ["\n".join(table.remarks)] * bool(table.remarks)
            if table.verdicts:
                parts += [f"Aims, set for {AIMED_SETTING}:", align(_list_verdicts(table.verdicts))]
        return "\n\n".join([*parts, LEGEND]) + "\n"

    def to_markdown(self) -> str:
        """Markdown."""
        parts = ["# What a step costs", *(f"* {line}" for line in _describe(self.protocol).splitlines())]
        parts = [parts[0], "\n".join(parts[1:])]
        for table in self.tables:
            parts += [f"## Batch size {table.batch_size}{_say_rate(table.rate)}", _mark(_list_rows(table.rows))]
            parts += ["\n".join(f"* {remark}" for remark in table.remarks)] * bool(table.remarks)
            if table.verdicts:
                parts += [f"Aims, set for {AIMED_SETTING}:", _mark(_list_verdicts(table.verdicts))]
        return "\n\n".join([*parts, LEGEND]) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Every number, measured and derived."""
        tables = []
        for table in self.tables:
            verdicts = [dataclasses.asdict(verdict) | {"word": verdict.word} for verdict in table.verdicts]
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
    """Cells as a Markdown table."""
    marked = ["| " + " | ".join(line) + " |" for line in lines]
    marked.insert(1, "|" + "|".join([":--", *["--:"] * (len(lines[0]) - 1)]) + "|")
    return "\n".join(marked)


def _describe(protocol: dict[str, Any]) -> str:
    """The protocol, one fact per line."""
    return "\n".join(f"{key.replace('_', ' ')}: {value}" for key, value in protocol.items())


def _say_rate(rate: float | None) -> str:
    return "" if rate is None else f"; matrix products at {rate / 1e9:.0f} GFLOP/s"


def _list_rows(rows: Sequence[Measurement]) -> list[list[str]]:
    """The main table as cells."""
    lines = [
        ["contender", "past gate", "ms/image", "min - max", "peak MB", "trainable", "forwards", "limit ms", "reached"]
    ]
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
    """The aims as cells; bytes of one contender alone are shown in GB."""
    lines = [["ratio", "aim", "measured", "in the rounds", ""]]
    for verdict in verdicts:
        unit = 1.0 if verdict.aim.bottom else 1e9
        spread = "" if verdict.low is None or verdict.high is None else f"{verdict.low:.2f} - {verdict.high:.2f}"
        numbers = [f"<= {verdict.aim.limit / unit:g}", f"{verdict.value / unit:.2f}", spread]
        lines.append([verdict.aim.what, *numbers, verdict.word])
    return lines


def _count_digits(milliseconds: float | None) -> int:
    """Decimals to show."""
    return 1 if milliseconds is not None and milliseconds >= 10 else 3


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
