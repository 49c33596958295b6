"""Events in words, and as they are stored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from lmr.service.engine.stream_types import ServiceEvent, StreamAction
from lmr.service.store.stored_types import StoredEvent

_ACTIONS: dict[StreamAction, str] = {
    "reset": "An operator returned the stream to its start.",
    "rollback": "An operator rolled the stream back to a snapshot.",
    "pause": "An operator stopped the adaptation of the stream; it is answered with its present state.",
    "resume": "An operator let the stream adapt again, under observation.",
    "undo": "An operator undid the last rollback, reset, quarantine or undo.",
    "delete": "An operator deleted the stream.",
}
_RUNGS = {
    "ok": "Nothing unusual was seen for a while; all is well again.",
    "watch": "Something looks unusual; every image is compared with the frozen model now.",
    "alarm": "The suspicion was confirmed; this watch only reports.",
    "rolled back": "The suspicion was confirmed; the stream was rolled back to a snapshot and rests for a while.",
    "reset": "The suspicion was confirmed; the stream was returned to its start and rests for a while.",
    "quarantined": "It went wrong again and again; the stream is answered as zero-shot until an operator resumes it.",
}


def describe_action(action: StreamAction) -> str:
    """What an operator did."""
    return _ACTIONS[action]


def describe_health(event: Mapping[str, Any]) -> str:
    """What the watch found and did, from an event in the info of a step."""
    words = _RUNGS.get(event["after"], f"The health of the stream is now {event['after']!r}.")
    if event["before"] in ("rolled back", "reset") and event["after"] == "watch":
        words = "The rest is over; the stream adapts again, and every image is compared with the frozen model."
    return words + (f" Signals: {', '.join(event['alarms'])}." if event["alarms"] else "")


def store_event(event: ServiceEvent) -> StoredEvent:
    """As it is stored."""
    return StoredEvent(event.number, event.stream, json.dumps(dataclasses.asdict(event)))


def read_event(text: str) -> ServiceEvent:
    """What ``store_event`` gave."""
    return ServiceEvent(**json.loads(text))
