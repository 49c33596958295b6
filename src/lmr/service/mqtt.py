"""Answers of the service on MQTT: the last one of every stream, retained, with discovery for Home Assistant.

The engine only appends to a bounded queue. A thread of this module publishes, and the thread of paho-mqtt connects, so
that a slow or missing broker delays no answer. What does not fit into the queue is dropped, the oldest first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.known import UNKNOWN
from lmr.service.engine.records import DELETED
from lmr.service.engine.requests import StepAnswer
from lmr.service.engine.status import StreamStatus
from lmr.version import __version__

if TYPE_CHECKING:
    from paho.mqtt.client import Client

LOGGER = logging.getLogger("lmr.service.mqtt")
Report = Callable[[str], object]  # gets messages for people
PROGRAM = __name__.partition(".")[0]  # the prefix of topics, and what Home Assistant shows as the origin
MOST_WAITING, MOST_STREAMS = 1000, 10_000  # results in the queue; streams whose last state is kept for a reconnect
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_RETRY = 1, 60  # seconds from one attempt to connect to the next, doubled each time
_SEND_SECONDS = 5.0  # to wait until the broker has a message
_DISCOVERY = "homeassistant/sensor/{}/{}/config"
_SENSORS: dict[str, dict[str, str]] = {
    "label": {"icon": "mdi:tag"},
    "confidence": {"unit_of_measurement": "%", "state_class": "measurement", "suggested_display_precision": "0"},
    "known": {"unit_of_measurement": "%", "state_class": "measurement", "suggested_display_precision": "0"},
    "health": {"icon": "mdi:heart-pulse", "entity_category": "diagnostic"},
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
    def read(cls, text: str) -> MqttAddress:
        """Read an address; LmrError for what is none."""
        try:
            parts: SplitResult = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = SplitResult("", "", "", "", ""), None
        prefix = parts.path.strip("/")
        if parts.scheme not in _PORTS or not parts.hostname or "+" in prefix or re.search(r"[#?\0]", text):
            shown = text.rpartition("@")[2]  # without a password
            raise LmrError(f"Expected a broker as mqtt://host, mqtts://user:password@host:port/prefix; got {shown!r}.")
        user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
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
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()  # the last of each stream
        self._announced: set[str] = set()  # streams that Home Assistant was told of since the last connect
        self._renew = self._ended = False
        self.dropped = 0  # results that were not published
        self._client = address.make_client("lmr serve --mqtt", LOGGER.warning, self._note_connect)
        self._client.will_set(self._available, "offline", qos=1, retain=True)
        self._client.max_queued_messages_set(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="lmr-mqtt", daemon=True)

    def start(self) -> None:
        """Connect and publish, in threads of their own."""
        self._client.connect_async(self.address.host, self.address.port)
        self._client.loop_start()
        self._thread.start()

    def add(self, result: StepAnswer | StreamStatus) -> None:
        """Queue a result for publishing; never waits."""
        with self._changed:
            self.dropped += len(self._waiting) == MOST_WAITING
            self._waiting.append(result)
            self._changed.notify_all()

    def close(self) -> None:
        """Publish what waits, within seconds, and say goodbye."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(2 * _SEND_SECONDS)
        self._client.disconnect()
        self._client.loop_stop()

    def _run(self) -> None:
        end, is_connected = float("inf"), self._client.is_connected
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or (is_connected() and (self._renew or self._waiting)))
                end = min(end, time.monotonic() + _SEND_SECONDS) if self._ended else end
                if self._ended and (not is_connected() or not self._waiting or time.monotonic() > end):
                    break
                renew, self._renew = self._renew, False
                result = None if renew else self._waiting.popleft()
            try:
                if result is None:
                    self._publish_all()
                else:
                    self._publish(result)
            except Exception:  # one bad result must not end the others
                LOGGER.exception("A message could not be published")
        if is_connected():
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
        elif result.health == DELETED:
            del self._states[stream]
            self._announced.discard(stream)
            for topic in (self._name_topic(stream), *(_DISCOVERY.format(_slug(stream), key) for key in _SENSORS)):
                self._send(topic, "")  # removes what is retained
            return
        else:
            state = self._states[stream] | {"health": result.health}
        self._states[stream] = state
        self._states.move_to_end(stream)
        while len(self._states) > MOST_STREAMS:
            self._announced.discard(self._states.popitem(last=False)[0])
        self._publish_state(stream)

    def _publish_state(self, stream: str) -> None:
        if stream not in self._announced:
            for key in _SENSORS:
                self._send(_DISCOVERY.format(_slug(stream), key), json.dumps(self._describe_sensor(stream, key)))
            self._announced.add(stream)
        self._send(self._name_topic(stream), json.dumps(self._states[stream], ensure_ascii=False, allow_nan=False))

    def _name_topic(self, stream: str) -> str:
        return f"{self._prefix}/{stream}/state"

    def _describe_sensor(self, stream: str, key: str) -> dict[str, Any]:
        """Return the discovery message of one sensor, as in Home Assistant's documentation of MQTT sensors."""
        topic, name = self._name_topic(stream), f"{self._prefix}_{_slug(stream)}"
        percent = f"{{{{ (100 * value_json.{key}) | round(1) if value_json.{key} is number else none }}}}"
        return {
            "name": key.capitalize(),
            "unique_id": f"{name}_{key}",
            "state_topic": topic,
            "value_template": percent if key in ("confidence", "known") else f"{{{{ value_json.{key} }}}}",
            "availability_topic": self._available,
            "device": {"identifiers": [name], "name": stream, "manufacturer": PROGRAM, "model": self._model},
            "origin": {"name": PROGRAM, "sw_version": __version__},
            **({"json_attributes_topic": topic} if key == "label" else {}),
            **_SENSORS[key],
        }

    def _send(self, topic: str, payload: str) -> None:
        """Publish a retained message and wait until the broker has it; paho sends it again after a reconnect."""
        try:
            self._client.publish(topic, payload, qos=1, retain=True).wait_for_publish(_SEND_SECONDS)
        except RuntimeError:
            pass  # the connection was lost
        except ValueError:  # the queue of paho is full
            self.dropped += 1

    def _note_connect(self, client: Client) -> None:
        LOGGER.info("mqtt connected", extra={"fields": {"broker": str(self.address), "dropped": self.dropped}})
        with self._changed:
            self._renew = True
            self._changed.notify_all()


def _describe(answer: StepAnswer) -> dict[str, Any] | None:
    """Return the state of a stream after an answer: that of the last image which could be read, if there is one."""
    read = [one for one in answer.answers if one.error is None]
    if not read:
        return None
    last = read[-1]
    return {
        "label": UNKNOWN if last.label is None else last.label,
        "confidence": last.probability,
        "known": last.known,
        "frozen": last.frozen,
        "health": answer.adaptation.get("health"),
        "labels": [UNKNOWN if one.label is None else one.label for one in read],  # of all images of the request
        "seq": answer.seq,
        "time": time.time(),
    }


def _slug(stream: str) -> str:
    """Return the name of a stream with the characters that Home Assistant allows in a topic, unlike any other's."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", stream)
    return plain if plain == stream else f"{plain}_{hashlib.sha256(stream.encode()).hexdigest()[:6]}"
