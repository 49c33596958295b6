"""Every change of health and every action has its words."""

from __future__ import annotations

from typing import get_args

from lmr.service.engine.stream_types import ServiceEvent, StreamAction
from lmr.service.engine.telling import describe_action, describe_health, read_event, store_event
from lmr.watch.ladder import Rung


def test_every_action_and_rung_is_a_sentence() -> None:
    words = [describe_action(action) for action in get_args(StreamAction)]
    words += [describe_health({"before": "ok", "after": str(rung), "alarms": []}) for rung in Rung]
    assert all(text.endswith(".") for text in words)
    assert len(set(words)) == len(words)


def test_signals_and_the_end_of_a_rest_are_told() -> None:
    assert "entropy, drift" in describe_health({"before": "ok", "after": "watch", "alarms": ["entropy", "drift"]})
    assert "rest is over" in describe_health({"before": "rolled back", "after": "watch", "alarms": []})


def test_event_is_stored_and_read() -> None:
    event = ServiceEvent(4, 1.5, "a", "health", "ok", "watch", "words", {"drift": None})
    assert read_event(store_event(event).content) == event
    assert store_event(event).number == 4
