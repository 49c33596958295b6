"""Keys are taken once and belong to one body."""

from __future__ import annotations

from engine_maker import make_request
from lmr.core.answer import Answer
from lmr.service.engine.delivery import KeyTable
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
