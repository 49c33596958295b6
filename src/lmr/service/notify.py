"""Notifier: sends the events of the service to one address, as JSON. A slow or missing receiver delays no answer."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from urllib.parse import urlsplit

import httpx

from lmr.core.errors import LmrError
from lmr.core.foreign_text import hide_password
from lmr.service.engine.status import ServiceEvent
from lmr.service.network import is_loopback

LOGGER = logging.getLogger("lmr.service.notify")
MOST_WAITING = 1000  # events; past it the oldest are dropped
ATTEMPTS, FIRST_PAUSE = 4, 1.0  # to send an event; seconds to the second one, doubled each time
SEND_SECONDS = 5.0  # for an attempt
CLOSE_SECONDS = 2.0  # for the events that wait at the end


def check_address(address: str, allowed: Sequence[str] = ()) -> str:
    """Return an address to notify; LmrError unless its host is this machine or one of ``allowed``."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    shown = hide_password(address)
    if host is None or parts.scheme not in ("http", "https"):
        raise LmrError(f"Expected an address such as http://127.0.0.1:9000/alarm for --notify, got {shown!r}.")
    if not is_loopback(host) and host not in allowed:
        raise LmrError(f"--notify sends to this machine alone; to send to {host}, give --notify-host {host}, too.")
    return address


class Notifier:
    """A bounded queue of events, and a thread that posts them one after the other. It follows no redirect."""

    def __init__(self, address: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self._address = address
        self._waiting: deque[ServiceEvent] = deque(maxlen=MOST_WAITING)
        self._changed = threading.Condition()
        self._ended = False
        self.dropped = 0  # events that were not delivered
        self._client = httpx.Client(timeout=SEND_SECONDS, follow_redirects=False, trust_env=False, transport=transport)
        self._thread = threading.Thread(target=self._run, name="lmr-notify", daemon=True)
        self._thread.start()

    def add(self, event: ServiceEvent) -> None:
        """Queue an event; never waits."""
        with self._changed:
            self.dropped += len(self._waiting) == MOST_WAITING
            self._waiting.append(event)
            self._changed.notify_all()

    def close(self) -> None:
        """Send what waits, within seconds, and end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        self._client.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._waiting)
                if not self._waiting:
                    return
                event = self._waiting.popleft()
            if not self._send(event):
                self.dropped += 1

    def _send(self, event: ServiceEvent) -> bool:
        """Post an event, again after a pause where the receiver is missing or busy; return True if it was taken."""
        problem = ""
        for attempt in range(ATTEMPTS):
            with self._changed:
                if attempt and self._changed.wait_for(lambda: self._ended, FIRST_PAUSE * 2 ** (attempt - 1)):
                    return False
            try:
                headers = {"Content-Type": "application/json"}
                answer = self._client.post(self._address, content=event.to_json(), headers=headers)
            except Exception as error:  # the thread outlives every problem of the receiver
                problem = str(error) or type(error).__name__
                continue
            if answer.is_success:
                return True
            problem = f"it answers {answer.status_code}"
            if answer.status_code < 500 and answer.status_code not in (408, 425, 429):
                break
        LOGGER.warning("The event %d cannot be sent to %s: %s", event.number, hide_password(self._address), problem)
        return False
