"""Rates: how fast the engine has been lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lmr.service.engine.step_types import BatchReport

WINDOW = 10.0  # seconds over which rates are averaged
MOST_BATCHES, MOST_LATENCIES = 4096, 1024


class Rates:
    """The last batches and latencies. Its owner keeps threads apart."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, BatchReport]] = deque(maxlen=MOST_BATCHES)
        self._latencies: deque[float] = deque(maxlen=MOST_LATENCIES)

    def add_batch(self, now: float, report: BatchReport) -> None:
        """Add a batch that was finished now."""
        self._batches.append((now, report))

    def add_latency(self, seconds: float) -> None:
        """Add the time from the arrival of a request to its answer."""
        self._latencies.append(seconds)

    def describe(self, now: float) -> dict[str, float | None]:
        """The fields of ``Overview`` that are rates, means and percentiles."""
        recent = [report for time, report in self._batches if time > now - WINDOW]
        batches = [report for report in recent if report.images]  # others are labels, actions or commits alone
        commits = [report.commit_seconds for report in recent if report.commit_seconds is not None]
        latencies = sorted(self._latencies)
        return {
            "images_per_second": sum(report.images for report in recent) / WINDOW,
            "steps_per_second": sum(report.steps for report in recent) / WINDOW,
            "batch_images": _average([report.images for report in batches]),
            "batch_streams": _average([report.streams for report in batches]),
            "step_ms": _average([1000 * report.seconds for report in batches]),
            "commit_ms": _average([1000 * seconds for seconds in commits]),
            "latency_p50_ms": _find_percentile(latencies, 0.5),
            "latency_p99_ms": _find_percentile(latencies, 0.99),
        }


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _find_percentile(ordered: Sequence[float], share: float) -> float | None:
    """In milliseconds, from seconds in order."""
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
