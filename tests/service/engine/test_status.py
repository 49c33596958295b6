"""Every change of health and every action has a message."""

from __future__ import annotations

from typing import get_args

from lmr.service.engine.requests import StreamAction
from lmr.service.engine.status import ACTION_MESSAGES, ServiceEvent, describe_health
from lmr.watch.health import Level


def test_every_action_and_health_level_is_a_sentence() -> None:
    messages = [ACTION_MESSAGES[action] for action in get_args(StreamAction)]
    messages += [describe_health({"before": "ok", "after": str(level), "alarms": []}) for level in Level]
    assert all(text.endswith(".") for text in messages)
    assert len(set(messages)) == len(messages)


def test_signals_and_the_end_of_a_rest_are_in_the_message() -> None:
    assert "entropy, drift" in describe_health({"before": "ok", "after": "suspected", "alarms": ["entropy", "drift"]})
    assert "rest is over" in describe_health({"before": "rolled back", "after": "suspected", "alarms": []})


def test_event_is_stored_and_read() -> None:
    event = ServiceEvent(4, 1.5, "a", "health", "ok", "watch", "A message.", {"drift": None})
    assert ServiceEvent.from_json(event.store().content) == event
