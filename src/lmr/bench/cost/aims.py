"""The aims compared with what was measured: ratios within one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmr.bench.cost.measurement import Measurement
from lmr.bench.cost.settings import AIMS, Aim


@dataclass(frozen=True)
class Verdict:
    """An aim and what was measured: the ratio of medians, and the range of the ratios within rounds."""

    aim: Aim
    value: float
    low: float | None
    high: float | None
    other: str  # empty, or the setting of the aim where this run has another one

    @property
    def word(self) -> str:
        """Met, missed, or the setting of an aim that does not apply."""
        if self.other:
            return self.other
        return "met" if self.value <= self.aim.limit else "missed"


def judge_aims(rows: Sequence[Measurement], model: str = "") -> list[Verdict]:
    """Every aim whose contenders were measured. ``model`` names the model of the aims if this run has another one."""
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
    """The setting of the aim where it differs from that of this run."""
    other = []
    if aim.batch_size is not None and row.batch_size != aim.batch_size:
        other.append(f"batch size {aim.batch_size}")
    if aim.streams is not None and row.entry.streams != aim.streams:
        other.append(f"{aim.streams} streams")
    if aim.classes is not None and row.classes != aim.classes:
        other.append(f"{aim.classes} classes")
    return f"for {', '.join(other)}" if other else ""
