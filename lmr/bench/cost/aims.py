"""What this tower was written to reach, as ratios within one run. These are aims; what was reached is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lmr.bench.cost.measurement import Row

MODEL = "ViT-B/16"
SETTING = f"{MODEL}, batch sizes 16 and 64, two cores"


@dataclass(frozen=True)
class Aim:
    """One quantity of two contenders, divided, or in bytes of one of them, and what it should not exceed."""

    what: str
    top: str  # keys of entries
    bottom: str | None
    quantity: Literal["time", "memory"]
    limit: float
    batch_size: int | None = None  # where the aim holds for one size only
    streams: int | None = None
    classes: int | None = None


AIMS = (
    Aim("our forward / transformers' forward", "forward", "transformers", "time", 0.85),
    Aim("LMR, all past the gate / our forward", "lmr all", "forward", "time", 3.2),
    Aim("LMR, half past the gate / our forward", "lmr half", "forward", "time", 2.7),
    Aim("LMR, none past the gate / our forward", "lmr none", "forward", "time", 1.05),
    Aim("LMR, all past / plain LMR on transformers", "lmr all", "plain lmr", "time", 0.75),
    Aim("LMR, all past / plain LMR, peak memory", "lmr all", "plain lmr", "memory", 0.5),
    Aim("64 streams x 1 in one batch / 64 single steps", "streams", "singles", "time", 0.5, streams=64),
    Aim("LMR, all past / BATCLIP, 1000 classes", "lmr all", "batclip", "time", 0.5, batch_size=64, classes=1000),
    Aim("BATCLIP, 1000 classes: peak memory in GB", "batclip", None, "memory", 4e9, batch_size=64, classes=1000),
)


@dataclass(frozen=True)
class Verdict:
    """An aim beside what was measured: the quotient of medians and the range of the quotients within rounds."""

    aim: Aim
    value: float
    low: float | None
    high: float | None
    other: str  # empty, or for what the aim was set instead

    @property
    def word(self) -> str:
        """Met, missed, or why neither."""
        if self.other:
            return self.other
        return "met" if self.value <= self.aim.limit else "missed"


def judge_aims(rows: Sequence[Row], model: str = "") -> list[Verdict]:
    """Every aim whose contenders are there and were measured; ``model`` names the aims' where this is another one."""
    found: dict[str, Row] = {}
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


def _compare_setting(aim: Aim, row: Row) -> str:
    """For what the aim was set where this run is another case."""
    other = []
    if aim.batch_size is not None and row.batch_size != aim.batch_size:
        other.append(f"batch size {aim.batch_size}")
    if aim.streams is not None and row.entry.streams != aim.streams:
        other.append(f"{aim.streams} streams")
    if aim.classes is not None and row.classes != aim.classes:
        other.append(f"{aim.classes} classes")
    return f"for {', '.join(other)}" if other else ""
