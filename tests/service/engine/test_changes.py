"""The log of changes: what a follower reads is complete, in order and bounded, or it is told to begin anew."""

from __future__ import annotations

import pytest

from lmr.service.engine import changes
from lmr.service.engine.changes import ChangeLog
from lmr.service.engine.records import StreamRecord
from lmr.service.engine.status import ServiceEvent


def make_event(number: int) -> ServiceEvent:
    return ServiceEvent(number, 0.0, "a", "health", "ok", "suspected", "A message.")


def publish(log: ChangeLog, stream: str, health: str = "ok", before: str = "") -> int:
    log.publish([], [(before, StreamRecord(stream, health=health, change=log.take_number()))])
    return log.last


def test_follower_who_reads_little_at_a_time_gets_all() -> None:
    log = ChangeLog(0, {})
    for k in range(7):
        publish(log, f"s{k}")
        log.publish([make_event(log.take_number())], [])
    seen, events, after = [], [], 0
    while after < log.last:
        after, new_events, records, _ = log.read(after, 2)
        assert len(records) <= 2
        assert len(new_events) <= 2
        seen += [record.stream for record in records]
        events += new_events
    assert seen == [f"s{k}" for k in range(7)]
    assert len(events) == 7


def test_number_that_was_taken_early_and_published_late_is_not_missed() -> None:
    """A batch takes numbers before its commit; meanwhile something else is published."""
    log = ChangeLog(0, {})
    early = StreamRecord("a", change=log.take_number())
    event = make_event(log.take_number())
    log.publish([event], [])
    after = log.last
    log.publish([], [("", early)])
    (record,) = log.read(after, 10)[2]
    assert record.change > after


def test_too_long_ago_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_STREAMS", 3)
    monkeypatch.setattr(changes, "MOST_EVENTS", 3)
    log = ChangeLog(100, {})
    assert log.read(99, 10)[3]
    assert log.read(101, 10)[3]  # of another run
    for k in range(5):
        publish(log, f"s{k}")
    assert log.read(100, 10)[3]
    assert [record.stream for record in log.read(102, 10)[2]] == ["s2", "s3", "s4"]
    for _ in range(5):
        log.publish([make_event(log.take_number())], [])
    assert log.read(106, 10)[3]
    assert len(log.read(107, 10)[1]) == 3
