"""Frigate: classify the objects that Frigate tracks, and write the answers back as sub-labels.

Frigate publishes a message for every change of a tracked object. The thread of paho-mqtt puts the last message of each
object into a bounded queue. ``FrigateBridge.run`` takes one after the other: it gets the snapshot from Frigate, sends
it to the stream of its camera, and sets the sub-label. Formats and routes are those of Frigate's documentation:
docs.frigate.video/integrations/mqtt and docs.frigate.video/integrations/api.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from lmr.core.errors import LmrError
from lmr.service.client.client import Client
from lmr.service.client.errors import ServiceError, TokenRefused
from lmr.service.mqtt import MqttAddress, Report
from lmr.service.network import read_token_file
from lmr.service.settings import FrigateOptions

MOST_WAITING, MOST_DONE = 256, 10_000  # objects in the queue; objects whose last snapshot is remembered
MOST_BYTES = 10_000_000  # of a snapshot
ATTEMPTS, PAUSE = 3, 1.0  # to reach Frigate; seconds before the second, doubled each time
_SECONDS = 10.0  # for a request to Frigate
_LONGEST = 100  # characters of a sub-label
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of an object, which is a part of addresses
_CAMERA = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")  # of a camera, which names a stream


@dataclass(frozen=True)
class TrackedObject:
    """An object in a message of Frigate; ``time`` is that of its best snapshot so far."""

    id: str
    camera: str
    label: str
    time: float

    @classmethod
    def read(cls, payload: bytes) -> TrackedObject | None:
        """Read a message; None for an object without a snapshot, ValueError for what is no such message."""
        try:
            after = json.loads(payload)["after"]
            found = after["id"], after["camera"], after["label"]
            snapshot = after.get("snapshot")
            wanted = after.get("has_snapshot", True) and not after.get("false_positive")
            time = float(snapshot["frame_time"] if isinstance(snapshot, dict) else after["frame_time"])
        except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError("it lacks a field") from error
        if not all(isinstance(text, str) for text in found):
            raise ValueError("a name is no text")
        if not math.isfinite(time):
            raise ValueError("its time is no number")
        if not _ID.fullmatch(found[0]) or not _CAMERA.fullmatch(found[1]):
            raise ValueError("its id or its camera is no name")
        return cls(*found, time) if wanted else None


@dataclass
class FrigateSummary:
    """Counts of what a bridge did."""

    written: int = 0  # sub-labels
    unsure: int = 0  # answers that were not written: unknown, or below the least probability
    failed: int = 0  # objects that Frigate or the service would not serve
    dropped: int = 0  # objects that did not fit into the queue
    bad: int = 0  # messages that could not be read

    def __str__(self) -> str:
        return (
            f"{self.written} sub-labels written, {self.unsure} answers unknown or unsure, {self.failed} objects "
            f"failed, {self.dropped} dropped, {self.bad} messages unreadable"
        )


class FrigateBridge:
    """Objects from a broker to a service, and their labels to Frigate."""

    def __init__(self, client: Client, options: FrigateOptions, report: Report = lambda message: None) -> None:
        self.summary = FrigateSummary()
        self._client, self._options, self._report = client, options, report
        self._objects = {name.strip() for name in (options.objects or "").split(",") if name.strip()}
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, TrackedObject] = OrderedDict()
        self._done: OrderedDict[str, float] = OrderedDict()  # the snapshot of each object that was classified last
        self._ended = False
        self._address = MqttAddress.read(options.mqtt)
        self._topic = f"{self._address.prefix or 'frigate'}/events"
        self._frigate = httpx.Client(base_url=read_address(options.frigate), timeout=_SECONDS)
        self._broker = self._address.make_client("lmr frigate", report, self._subscribe)
        self._broker.on_message = lambda client, data, message: self.add(bytes(message.payload))

    def add(self, payload: bytes) -> None:
        """Queue the object of a message, in place of an earlier state of it; never waits."""
        try:
            found = TrackedObject.read(payload)
        except ValueError as error:
            self.summary.bad += 1
            if self.summary.bad == 1:
                self._report(f"a message at {self._topic} cannot be used: {error}; others like it are counted")
            return
        if found is None or (self._objects and found.label not in self._objects):
            return
        with self._changed:
            if self._done.get(found.id) == found.time:
                return  # the sub-label itself makes a message, too
            self._waiting[found.id] = found
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popitem(last=False)
                self.summary.dropped += 1
            self._changed.notify_all()

    def run(self) -> FrigateSummary:
        """Serve until ``stop``, or until an error that will not pass."""
        self._broker.connect_async(self._address.host, self._address.port)
        self._broker.loop_start()
        try:
            while (one := self._take()) is not None:
                try:
                    self._serve(one)
                except TokenRefused:
                    raise
                except (ServiceError, httpx.HTTPError, _FrigateError) as error:
                    self.summary.failed += 1
                    self._report(f"{one.camera}, object {one.id}: {error}")
        finally:
            self._broker.disconnect()
            self._broker.loop_stop()
            self._frigate.close()
        return self.summary

    def stop(self) -> None:
        """End ``run`` after the object that is being served."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self) -> TrackedObject | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._waiting)
            if self._ended:
                return None
            one = self._waiting.popitem(last=False)[1]
            self._done[one.id] = one.time
            self._done.move_to_end(one.id)
            while len(self._done) > MOST_DONE:
                self._done.popitem(last=False)
            return one

    def _serve(self, one: TrackedObject) -> None:
        """Classify the snapshot of an object and write its sub-label."""
        image = self._ask(lambda: self._fetch(one.id))
        answer = self._client.step(one.camera, image, top=1, key=f"frigate-{one.id}-{one.time}").answers[0]
        if answer.error is not None:
            raise _FrigateError(f"the snapshot cannot be used: {answer.error}")
        if answer.label is None or (answer.probability or 0) < self._options.least:
            self.summary.unsure += 1
            return
        score = min(1.0, max(0.0001, round(answer.probability or 0, 4)))  # Frigate takes scores above 0
        body = {"subLabel": answer.label[:_LONGEST], "subLabelScore": score}
        self._ask(lambda: _check(self._frigate.post(f"/api/events/{one.id}/sub_label", json=body)))
        self.summary.written += 1
        self._report(f"{one.camera}: {one.label} {one.id} is {answer.label} ({score:.2f})")

    def _fetch(self, name: str) -> bytes:
        """Return the snapshot of an object, cut to it; of a limited size."""
        with self._frigate.stream("GET", f"/api/events/{name}/snapshot.jpg", params={"crop": 1}) as response:
            content = b""
            if response.is_success:
                for part in response.iter_bytes():
                    content += part
                    if len(content) > MOST_BYTES:
                        raise _FrigateError(f"the snapshot has more than {MOST_BYTES:,} bytes")
            _check(response)
            return content

    def _ask(self, request: Callable[[], Any]) -> Any:
        """Make a request to Frigate, again after a pause while it cannot be reached or fails."""
        for attempt in range(ATTEMPTS):
            try:
                return request()
            except (httpx.TransportError, _FrigateDown):
                with self._changed:
                    last = attempt + 1 == ATTEMPTS or self._ended
                    if last or self._changed.wait_for(lambda: self._ended, PAUSE * 2**attempt):
                        raise
        raise AssertionError

    def _subscribe(self, client: Any) -> None:
        client.subscribe(self._topic, qos=1)
        self._report(f"listening to {self._topic} at {self._address}")


class _FrigateError(Exception):
    """Frigate's answer cannot be used."""


class _FrigateDown(_FrigateError):
    """Frigate fails now and may be well later."""


def _check(response: httpx.Response) -> None:
    """Raise an error for an answer that is none."""
    if response.is_success:
        return
    problem = f"Frigate answered {response.status_code} to {response.request.method} {response.request.url.path}"
    raise (_FrigateDown if response.status_code >= 500 else _FrigateError)(problem)


def read_address(text: str) -> str:
    """Return the address of Frigate; LmrError for what is none."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise LmrError(f"Expected the address of Frigate as http://host:5000, got {text!r}.")
    return text.rstrip("/")


def run_frigate(
    options: FrigateOptions,
    report: Report = lambda message: None,
    on_start: Callable[[FrigateBridge], object] = lambda bridge: None,
) -> FrigateSummary:
    """Classify Frigate's objects until Ctrl-C; see ``lmr frigate --help``. ``on_start`` gets the bridge, to stop it."""
    token = None if options.token_file is None else read_token_file(options.token_file)
    with Client(options.to, token, patience=options.patience, on_wait=report) as client:
        bridge = FrigateBridge(client, options, report)
        on_start(bridge)
        try:
            return bridge.run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Interrupted. {bridge.summary}.") from None
