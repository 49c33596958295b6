from __future__ import annotations

import json
import threading
from collections.abc import Callable

import httpx
import pytest

from lmr.core.errors import LmrError
from lmr.service import notify
from lmr.service.engine.status import ServiceEvent
from lmr.service.notify import Notifier, check_address


def make_event(number: int) -> ServiceEvent:
    return ServiceEvent(number, 1.0, "cam", "camera", "ok", "black", "The picture is black.")


class Receiver(httpx.BaseTransport):
    """Answers with these codes, one after the other, and then with 204."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.came, self.changed = list(codes), [], threading.Condition()

    came: list[int]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self.changed:
            self.came.append(json.loads(request.read())["number"])
            self.changed.notify_all()
            code = self.codes.pop(0) if self.codes else 204
        if code == 0:
            raise httpx.ConnectError("refused")
        return httpx.Response(code, headers={"Location": "http://example.com"} if code == 302 else {})

    def wait(self, is_done: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_done, 30)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 0.001)


def test_events_come_in_order_and_again_where_the_receiver_is_missing() -> None:
    receiver = Receiver(0, 503)
    notifier = Notifier("http://127.0.0.1:9/alarm", transport=receiver)
    for number in (1, 2):
        notifier.add(make_event(number))
    receiver.wait(lambda: len(receiver.came) == 4)
    notifier.close()
    assert (receiver.came, notifier.dropped) == ([1, 1, 1, 2], 0)


def test_attempts_are_bounded_and_redirects_are_not_followed() -> None:
    receiver = Receiver(*[500] * notify.ATTEMPTS, 302, 404)
    notifier = Notifier("http://127.0.0.1:9/alarm", transport=receiver)
    for number in range(1, 5):
        notifier.add(make_event(number))
    receiver.wait(lambda: 4 in receiver.came)
    notifier.close()
    assert (receiver.came, notifier.dropped) == ([1] * notify.ATTEMPTS + [2, 3, 4], 3)


def test_the_queue_is_bounded_and_adding_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MOST_WAITING", 3)
    held = threading.Event()

    class Slow(Receiver):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            held.wait(30)
            return super().handle_request(request)

    receiver = Slow()
    notifier = Notifier("http://127.0.0.1:9/alarm", transport=receiver)
    for number in range(10):
        notifier.add(make_event(number))
    assert notifier.dropped >= 6
    held.set()
    receiver.wait(lambda: 9 in receiver.came)
    notifier.close()
    assert receiver.came[-3:] == [7, 8, 9]


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "ftp://127.0.0.1", "http://", "http://127.0.0.1:x", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(LmrError, match="Expected an address"):
        check_address(address)


def test_another_host_must_be_named() -> None:
    with pytest.raises(LmrError, match=r"--notify-host example\.com") as refused:
        check_address("https://user:secret@example.com/x")
    assert "secret" not in str(refused.value)
    assert check_address("https://example.com/x", ["a", "example.com"])
