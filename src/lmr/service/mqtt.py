"""Answers of the service on MQTT: the last one of every stream, retained, with discovery for Home Assistant.

The engine only appends to a bounded queue. A thread of this module publishes, and the thread of paho-mqtt connects, so
that a slow or missing broker delays no answer. What does not fit into the queue is dropped, the oldest first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.foreign_text import hide_password
from lmr.service.engine.records import DELETED, ESTIMATE, describe_estimate
from lmr.service.engine.requests import StepAnswer
from lmr.service.engine.status import StreamStatus
from lmr.service.network import read_secret
from lmr.version import __version__

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

LOGGER = logging.getLogger("lmr.service.mqtt")
Report = Callable[[str], object]  # gets messages for people
PROGRAM = __name__.partition(".")[0]  # the prefix of topics, and what Home Assistant shows as the origin
MOST_WAITING, MOST_STREAMS = 1000, 10_000  # results in the queue; streams whose last state is kept for a reconnect
MOST_TOP = 10  # classes in a message, which bounds its size: brokers refuse large ones
PASSWORD_VARIABLE = "LMR_MQTT_PASSWORD"
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_RETRY = 1, 60  # seconds from one attempt to connect to the next, doubled each time
_SEND_SECONDS, _POLL_SECONDS = 5.0, 0.05  # to wait until the broker has a message; to see that the connection is lost
_ATTEMPTS, _REFUSED_SECONDS = 3, 600.0  # to send a message; for which others of its size are not sent
_DISCOVERY = "homeassistant/sensor/{}/{}/config"
_SENSORS: dict[str, dict[str, str]] = {
    "label": {"icon": "mdi:tag"},
    "probability": {"unit_of_measurement": "%", "state_class": "measurement", "suggested_display_precision": "0"},
    "known": {"unit_of_measurement": "%", "state_class": "measurement", "suggested_display_precision": "0"},
    "estimated_accuracy": {
        "unit_of_measurement": "%",
        "state_class": "measurement",
        "suggested_display_precision": "0",
        "icon": "mdi:target",
    },
    "health": {"icon": "mdi:heart-pulse", "entity_category": "diagnostic"},
    "camera": {"icon": "mdi:cctv", "entity_category": "diagnostic"},
}


@dataclass(frozen=True)
class MqttAddress:
    """A broker: ``mqtt://[user[:password]@]host[:port][/prefix]``, or ``mqtts`` for TLS. Its text has no password."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    prefix: str = ""  # of the topics

    @classmethod
    def read(cls, text: str, password_file: str | os.PathLike[str] | None = None) -> MqttAddress:
        """Read an address; LmrError for what is none.

        The password comes from a file, from the address, which other users of the machine can see, or from the
        environment variable LMR_MQTT_PASSWORD.
        """
        try:
            parts: SplitResult = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = SplitResult("", "", "", "", ""), None
        prefix = parts.path.strip("/")
        if parts.scheme not in _PORTS or not parts.hostname or "+" in prefix or re.search(r"[#?\0]", text):
            shown = hide_password(text)
            raise LmrError(f"Expected a broker as mqtt://host, mqtts://user:password@host:port/prefix; got {shown!r}.")
        user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
        if password_file is not None and password is not None:
            raise LmrError("The password of the broker is given twice: leave it out of --mqtt, or omit the file.")
        if password_file is not None:
            password = read_secret(password_file, "password")
        elif user is not None and password is None:
            password = os.environ.get(PASSWORD_VARIABLE)
        if password is not None and user is None:
            raise LmrError("Give the user of the MQTT broker with its password, as mqtt://user@host.")
        return cls(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "mqtts", user, password, prefix)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"

    def make_client(self, purpose: str, warn: Report, on_connect: Callable[[Client], object]) -> Client:
        """Return a client of paho-mqtt that is not connected yet, and that reconnects with a growing pause.

        ``warn`` gets one sentence for each outage, which says what is wrong.
        """
        warned = False

        def note_problem(problem: str) -> None:
            nonlocal warned
            if not warned:
                warned = True
                warn(f"the MQTT broker {self} {problem}; trying again")

        def note_connect(client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
            nonlocal warned
            if reason.is_failure:
                note_problem(f"refused the connection: {reason}")
                return
            warned = False
            on_connect(client)

        def note_disconnect(client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
            if reason.is_failure:
                note_problem(f"was lost: {reason}")

        paho = require("paho.mqtt.client", "mqtt", purpose)
        client: Client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        if self.tls:
            client.tls_set()
        if self.user is not None:
            client.username_pw_set(self.user, self.password)
        client.reconnect_delay_set(*_RETRY)
        client.on_connect, client.on_disconnect = note_connect, note_disconnect
        client.on_connect_fail = lambda *_: note_problem("cannot be reached")
        return client


class _Lost(Exception):
    """The connection was lost, or closed by the broker, before it had a message."""


@dataclass(frozen=True)
class _Loss:
    """The last message on a topic that was lost: how often one after the other, its bytes, and when."""

    times: int = 0
    size: int = 0
    time: float = 0.0


class MqttPublisher:
    """Publishes results of an engine to a broker: ``engine.listen_results(publisher.add)``.

    The topics are ``PREFIX/<stream>/state``, a JSON object, and ``PREFIX/available``, "online" or "offline", which is
    the last will too. All are retained.
    """

    def __init__(self, address: MqttAddress, model: str = "") -> None:
        self.address, self._model = address, model
        self._prefix = address.prefix or PROGRAM
        self._available = f"{self._prefix}/available"
        self._changed = threading.Condition()
        self._waiting: deque[StepAnswer | StreamStatus] = deque(maxlen=MOST_WAITING)
        self._deleted: dict[str, None] = {}  # streams whose retained messages must be removed
        self._found: dict[str, None] = {}  # streams of which the broker had a state at the first connect
        self._is_gone: Callable[[str], bool] | None = None
        self._looks = False  # True until the first connect asks for these states
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()  # the last of each stream
        self._announced: set[str] = set()  # streams that Home Assistant was told of since the last connect
        self._losses: dict[str, _Loss] = {}  # of the last messages, by topic
        self._renew = self._ended = False
        self.dropped = 0  # messages that were not published
        self._client = self._make_client()
        self._thread = threading.Thread(target=self._run, name="lmr-mqtt", daemon=True)

    def start(self, is_gone: Callable[[str], bool] | None = None) -> None:
        """Connect and publish, in threads of their own.

        What the broker retains of a stream that ``is_gone`` is removed: the stream may have been deleted while there
        was no broker, and the service ended before there was one.
        """
        self._is_gone, self._looks = is_gone, is_gone is not None
        self._connect()
        self._thread.start()

    def add(self, result: StepAnswer | StreamStatus) -> None:
        """Queue a result for publishing; never waits."""
        with self._changed:
            if isinstance(result, StreamStatus) and result.health == DELETED:
                earlier = [one for one in self._waiting if one.stream != result.stream]
                self._waiting.clear()
                self._waiting.extend(earlier)
                self._deleted[result.stream] = None
                if len(self._deleted) > MOST_STREAMS:
                    del self._deleted[next(iter(self._deleted))]
                    self.dropped += 1
            else:
                self.dropped += len(self._waiting) == MOST_WAITING
                self._waiting.append(result)
            self._changed.notify_all()

    def close(self) -> None:
        """Publish what waits, within seconds, and say goodbye."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(2 * _SEND_SECONDS)
        self._disconnect()

    def _make_client(self) -> Client:
        client = self.address.make_client("lmr serve --mqtt", LOGGER.warning, self._note_connect)
        client.will_set(self._available, "offline", qos=1, retain=True)
        client.on_message = self._note_state
        return client

    def _connect(self) -> None:
        self._client.connect_async(self.address.host, self.address.port)
        self._client.loop_start()

    def _disconnect(self) -> None:
        client = self._client
        client.disconnect()
        client.loop_stop()
        # Without a cycle, its last reference closes its sockets.
        client.on_connect = client.on_connect_fail = client.on_disconnect = client.on_message = None

    def _replace_client(self) -> None:
        """Connect anew with a client that does not send the lost message before any other, as this one would."""
        self._disconnect()
        with self._changed:
            self._changed.wait_for(lambda: self._ended, _RETRY[0])
            if self._ended:
                return
        self._client = self._make_client()
        self._connect()

    def _has_work(self) -> bool:
        return bool(self._renew or self._deleted or self._found or self._waiting)

    def _run(self) -> None:
        end = float("inf")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or (self._client.is_connected() and self._has_work()))
                end = min(end, time.monotonic() + _SEND_SECONDS) if self._ended else end
                if self._ended and not (self._client.is_connected() and self._has_work() and time.monotonic() < end):
                    break
                deleted, found, result = next(iter(self._deleted), None), None, None
                if deleted is None and self._renew:
                    self._renew = False
                elif deleted is None and self._found:
                    found, _ = self._found.popitem()
                elif deleted is None:
                    result = self._waiting.popleft()
            try:
                if deleted is not None:
                    self._remove(deleted)
                elif found is not None:
                    self._check(found)
                elif result is not None:
                    self._publish(result)
                else:
                    self._publish_all()
            except _Lost:
                self._replace_client()  # which publishes all that is retained
            except Exception:  # one bad result must not end the others
                LOGGER.exception("A message could not be published")
        with contextlib.suppress(_Lost):
            if self._client.is_connected():
                self._send(self._available, "offline")

    def _publish_all(self) -> None:
        """Publish all that is retained again, as a broker that was restarted may have lost it."""
        self._announced.clear()
        self._send(self._available, "online")
        for stream in list(self._states):
            self._publish_state(stream)

    def _publish(self, result: StepAnswer | StreamStatus) -> None:
        stream = result.stream
        if isinstance(result, StepAnswer):
            state = _describe(result)
            if state is None:
                return
        elif stream not in self._states:
            return  # a stream that has not answered since the start
        else:
            state = {key: value for key, value in self._states[stream].items() if key not in ESTIMATE}
            state |= {"health": result.health, "camera": result.camera} | describe_estimate(result)
        self._states[stream] = state
        self._states.move_to_end(stream)
        while len(self._states) > MOST_STREAMS:
            self._announced.discard(self._states.popitem(last=False)[0])
        self._publish_state(stream)

    def _remove(self, stream: str) -> None:
        """Remove what the broker retains of a stream, also of one that has not answered since the start."""
        self._states.pop(stream, None)
        self._announced.discard(stream)
        for topic in (self._name_topic(stream), *(self._name_discovery(stream, key) for key in _SENSORS)):
            self._send(topic, "")
        with self._changed:
            self._deleted.pop(stream, None)

    def _check(self, stream: str) -> None:
        """Remove what the broker retains of a stream that is gone."""
        assert self._is_gone is not None
        if stream not in self._states and self._is_gone(stream):
            with self._changed:
                self._deleted[stream] = None

    def _publish_state(self, stream: str) -> None:
        if stream not in self._announced:
            for key in _SENSORS:
                self._send(self._name_discovery(stream, key), json.dumps(self._describe_sensor(stream, key)))
            self._announced.add(stream)
        self._send(self._name_topic(stream), json.dumps(self._states[stream], ensure_ascii=False, allow_nan=False))

    def _name_topic(self, stream: str) -> str:
        return f"{self._prefix}/{stream}/state"

    def _name_device(self, stream: str) -> str:
        """Return a name unlike that of any other stream, also of a service with another prefix."""
        return f"{_escape(self._prefix)}_-{_escape(stream)}"

    def _name_discovery(self, stream: str, key: str) -> str:
        return _DISCOVERY.format(self._name_device(stream), key)

    def _describe_sensor(self, stream: str, key: str) -> dict[str, Any]:
        """Return the discovery message of one sensor, as in Home Assistant's documentation of MQTT sensors."""
        topic, name = self._name_topic(stream), self._name_device(stream)
        percent = f"{{{{ (100 * value_json.{key}) | round(1) if value_json.{key} is number else none }}}}"
        return {
            "name": key.replace("_", " ").capitalize(),
            "unique_id": f"{name}_{key}",
            "state_topic": topic,
            "value_template": percent if "unit_of_measurement" in _SENSORS[key] else f"{{{{ value_json.{key} }}}}",
            "availability_topic": self._available,
            "device": {"identifiers": [name], "name": stream, "manufacturer": PROGRAM, "model": self._model},
            "origin": {"name": PROGRAM, "sw_version": __version__},
            **({"json_attributes_topic": topic} if key == "label" else {}),
            **_SENSORS[key],
        }

    def _send(self, topic: str, payload: str) -> None:
        """Publish a retained message and wait until the broker has it; _Lost if the connection was lost.

        A broker closes the connection if it does not take a message, for example one that is too large. So a message
        that was lost three times is dropped. For a while, others of about its size are not sent to its topic.
        """
        size, loss = len(payload.encode()), self._losses.get(topic, _Loss())
        if loss.times == _ATTEMPTS and size > loss.size / 2 and time.monotonic() < loss.time + _REFUSED_SECONDS:
            self.dropped += 1
            return
        message, end = self._client.publish(topic, payload, qos=1, retain=True), time.monotonic() + _SEND_SECONDS
        with contextlib.suppress(RuntimeError, ValueError):  # not connected
            while self._client.is_connected() and time.monotonic() < end:
                message.wait_for_publish(_POLL_SECONDS)
                if message.is_published():
                    self._losses.pop(topic, None)
                    return
        times = loss.times % _ATTEMPTS + 1
        self._losses[topic] = _Loss(times, size, time.monotonic())
        if times == _ATTEMPTS:
            LOGGER.warning("the MQTT broker took no message of %d bytes on %r; it is dropped", size, topic)
        raise _Lost

    def _note_connect(self, client: Client) -> None:
        LOGGER.info("mqtt connected", extra={"fields": {"broker": str(self.address), "dropped": self.dropped}})
        with self._changed:
            self._renew = True
            self._changed.notify_all()
        if self._looks:
            self._looks = False
            client.subscribe(self._name_topic("+"))

    def _note_state(self, client: Client, data: Any, message: MQTTMessage) -> None:
        """Note a stream whose state was retained at the first connect; what is published now comes after these."""
        if not message.retain:
            client.unsubscribe(self._name_topic("+"))
            return
        with self._changed:
            if len(self._found) < MOST_STREAMS:
                self._found[message.topic.removeprefix(f"{self._prefix}/").removesuffix("/state")] = None
                self._changed.notify_all()


def _describe(answer: StepAnswer) -> dict[str, Any] | None:
    """Return the state of a stream after an answer: that of the last image which could be read, if there is one."""
    read = [one for one in answer.answers if one.error is None]
    if not read:
        return None
    shown = replace(read[-1], top=read[-1].top[:MOST_TOP], frozen_top=read[-1].frozen_top[:MOST_TOP])
    return (
        shown.format()
        | {
            "label": read[-1].text,
            "labels": [one.text for one in read],  # of all images of the request
            "health": answer.adaptation.get("health"),
            "seq": answer.seq,
            "time": time.time(),
        }
        | {name: answer.adaptation[name] for name in (*ESTIMATE, "camera") if name in answer.adaptation}
    )


def _escape(name: str) -> str:
    """Return a name with the characters that Home Assistant allows in a topic, unlike that of any other name."""
    return re.sub(r"[^A-Za-z0-9-]", lambda found: "__" if found[0] == "_" else f"_{ord(found[0]):x}-", name)
