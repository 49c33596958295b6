"""A key is taken once, and belongs to one body."""

from __future__ import annotations

import pytest

from engine_maker import make_request
from lmr.service.engine.key_table import KeyTable, replay
from lmr.service.engine.step_types import KeyInFlight, KeyReused, StepAnswer
from lmr.service.store.stored_types import KeptAnswer

ANSWER = StepAnswer("a", 3, True, [[("dog", 0.5)]], {"mode": "adapt"}, {"step_ms": 1.0}, {"n": 1})


def test_key_is_taken_until_it_is_released() -> None:
    table, request = KeyTable(), make_request("a", 0, key="k", digest="d")
    assert table.take(request) is None
    with pytest.raises(KeyInFlight):
        table.take(request)
    with pytest.raises(KeyReused):
        table.take(make_request("a", 0, key="k", digest="other"))
    assert table.take(make_request("b", 0, key="k", digest="other")) is None
    table.release("a", "k")
    assert table.take(request) is None
    assert table.take(make_request("a", 0)) is None
    assert table.take(make_request("a", 0)) is None  # no key, nothing to take


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


def test_kept_answer_is_replayed_to_the_same_body() -> None:
    kept = KeptAnswer("k", "d", ANSWER.to_json())
    again = replay(make_request("a", 0, key="k", digest="d"), kept)
    assert again.replayed
    assert (again.top, again.note, again.seq) == (ANSWER.top, ANSWER.note, 3)
    with pytest.raises(KeyReused):
        replay(make_request("a", 0, key="k", digest="x"), kept)
