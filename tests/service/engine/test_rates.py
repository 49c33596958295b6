"""Rates of the last seconds, percentiles of the last answers."""

from __future__ import annotations

import pytest

from lmr.service.engine.rates import WINDOW, Rates
from lmr.service.engine.step_types import BatchReport


def test_nothing_is_known_at_first() -> None:
    found = Rates().describe(5.0)
    assert (found["images_per_second"], found["latency_p50_ms"], found["step_ms"]) == (0.0, None, None)


def test_only_recent_batches_count() -> None:
    rates = Rates()
    rates.add_batch(0.0, BatchReport(1000, 9, 9, 9.0, 9.0))
    rates.add_batch(100.0, BatchReport(8, 4, 3, 0.2, 0.01))
    rates.add_batch(101.0, BatchReport(4, 2, 1, 0.4, None))
    found = rates.describe(102.0)
    assert found["images_per_second"] == 12 / WINDOW
    assert found["steps_per_second"] == 4 / WINDOW
    assert (found["batch_images"], found["batch_streams"]) == (6, 3)
    assert found["step_ms"] == pytest.approx(300)
    assert found["commit_ms"] == pytest.approx(10)


def test_labels_and_actions_are_no_batches() -> None:
    """They come as often as images where every answer is labelled, and would halve the size of a batch."""
    rates = Rates()
    rates.add_batch(1.0, BatchReport(8, 4, 4, 0.2, 0.01))
    rates.add_batch(1.1, BatchReport(0, 1, 0, 0.0, 0.03))
    found = rates.describe(2.0)
    assert (found["batch_images"], found["batch_streams"], found["step_ms"]) == (8, 4, 200)
    assert found["commit_ms"] == pytest.approx(20)


def test_percentiles() -> None:
    rates = Rates()
    for k in range(100):
        rates.add_latency((99 - k) / 1000)
    found = rates.describe(0.0)
    assert (found["latency_p50_ms"], found["latency_p99_ms"]) == (pytest.approx(50), pytest.approx(99))
