from __future__ import annotations

import pytest

from closed_port import hold_closed_port
from lmr.core.errors import LmrError
from lmr.service.client.connection import FIRST, LONGEST, Connection, RetryRule
from lmr.service.client.errors import ServiceError


class Hours:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def make_rule(hours: Hours, patience: float, draw: float, messages: list[str] | None = None) -> RetryRule:
    told = [] if messages is None else messages
    return RetryRule(patience, lambda: hours.now, hours.sleep, lambda: draw, told.append)


def test_waits_double_up_to_the_longest_and_end_with_patience() -> None:
    hours = Hours()
    rule, attempt = make_rule(hours, 60.0, draw=1.0), 0
    while rule.wait(attempt, 0.0, "busy"):
        attempt += 1
    assert hours.slept[:4] == pytest.approx([FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST])
    assert hours.slept[-1] == LONGEST
    assert 60.0 - LONGEST < hours.now <= 60.0


def test_the_service_is_given_the_time_it_asks_for() -> None:
    hours = Hours()
    rule = make_rule(hours, 60, draw=0.5)
    assert rule.wait(0, 0.0, "busy", requested=7.0)
    assert 7.0 <= hours.slept[0] <= 7.0 + FIRST
    assert not rule.wait(1, 0.0, "busy", requested=100.0), "longer than the patience that is left"
    assert len(hours.slept) == 1


def test_messages_have_no_password_of_the_address() -> None:
    rule = make_rule(Hours(), 0.0, 0.0)
    for url in ("ftp://user:secret@host", "http://user:secret@host/?x=1"):
        with pytest.raises(LmrError, match="host") as refused:
            Connection(url, None, 1.0, rule)
        assert "secret" not in str(refused.value)
    with hold_closed_port() as place:
        connection = Connection(f"http://user:secret@{place}", None, 1.0, rule)
        with pytest.raises(ServiceError, match=place) as lost:
            connection.send("GET", "/readyz")
        connection.close()
    assert "secret" not in str(lost.value)
