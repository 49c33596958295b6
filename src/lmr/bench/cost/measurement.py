"""One row of the table: what was measured, and what follows from it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from typing import Any

from lmr.bench.cost.entries import Entry


@dataclass(frozen=True)
class Measurement:
    """A contender's measured seconds and bytes. ``forward_ms`` and ``rate`` are those of the same run."""

    entry: Entry
    spec: str
    batch_size: int
    classes: int
    images: int  # per step
    seconds: tuple[float, ...]  # of every measured step, in the order of the rounds
    peak_bytes: int | None
    trainable: int
    flops: int | None  # what one step needs
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
        """Everything, measured and derived."""
        times = {"median_ms": self.median_ms, "low_ms": min(self.each_ms), "high_ms": max(self.each_ms)}
        derived = {"forwards": self.forwards, "limit_ms": self.limit_ms, "reached": self.reached}
        return {"contender": self.entry.name, **dataclasses.asdict(self), **times, **derived}
