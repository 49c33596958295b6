"""Keys are taken once and belong to one body; rates cover the last seconds, percentiles the last answers."""

from __future__ import annotations

import pytest

from engine_maker import make_request
from lmr.core.answer import Answer
from lmr.service.engine.batch import BatchReport
from lmr.service.engine.delivery import WINDOW, KeyTable, Rates
from lmr.service.engine.requests import StepAnswer

IMAGES = Answer("dog", 0.5, top=(("dog", 0.5),)), Answer(error="not an image")
ANSWER = StepAnswer("a", 3, True, IMAGES, {"mode": "adapt"}, {"step_ms": 1.0})


def test_answer_that_is_not_committed_is_given_again() -> None:
    table, request = KeyTable(), make_request("a", 0, key="k", digest="d")
    table.take(request)
    table.note_answer(request, ANSWER)
    table.note_answer(make_request("a", 0), ANSWER)
    again = table.take(request)
    assert again is not None
    assert (again.seq, again.replayed) == (3, True)
    table.release("a", "k")
    assert table.take(request) is None


def test_only_recent_batches_count() -> None:
    rates = Rates()
    rates.batches.append((0.0, BatchReport(1000, 9, 9, 9.0, 9.0)))
    rates.batches.append((100.0, BatchReport(8, 4, 3, 0.2, 0.01)))
    rates.batches.append((101.0, BatchReport(4, 2, 1, 0.4, None)))
    found = rates.describe(102.0)
    assert found["images_per_second"] == 12 / WINDOW
    assert found["steps_per_second"] == 4 / WINDOW
    assert (found["batch_images"], found["batch_streams"]) == (6, 3)
    assert found["step_ms"] == pytest.approx(300)
    assert found["commit_ms"] == pytest.approx(10)


def test_labels_and_actions_do_not_count_as_batches() -> None:
    """They come as often as images where every answer is labelled, and would halve the size of a batch."""
    rates = Rates()
    rates.batches.append((1.0, BatchReport(8, 4, 4, 0.2, 0.01)))
    rates.batches.append((1.1, BatchReport(0, 1, 0, 0.0, 0.03)))
    found = rates.describe(2.0)
    assert (found["batch_images"], found["batch_streams"], found["step_ms"]) == (8, 4, 200)
    assert found["commit_ms"] == pytest.approx(20)
