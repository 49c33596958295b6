"""Answers of the service on MQTT: the last one of every stream, retained, with discovery for Home Assistant.

The thread of paho-mqtt connects and writes, so that a slow or missing broker delays no answer. What the broker does not
take in time is replaced by the next answer of the stream, and a broker that connects anew gets everything again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import time
from collections import OrderedDict
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
    from paho.mqtt.client import Client, MQTTMessageInfo

LOGGER = logging.getLogger("lmr.service.mqtt")
PROGRAM = __name__.partition(".")[0]  # the prefix of topics, and what Home Assistant shows as the origin
MOST_WAITING, MOST_STREAMS = 1000, 10_000  # messages that paho has not written; streams whose last state is kept
MOST_TOP = 10  # classes in a message, which bounds its size: brokers refuse large ones
PASSWORD_VARIABLE = "LMR_MQTT_PASSWORD"
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_RETRY = 1, 60  # seconds from one attempt to connect to the next, doubled each time
_CLOSE_SECONDS = 5.0  # for what is not written at the end
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
        self._connected = self._warned = False
        self._waiting = 0  # messages that paho has not written
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()  # the last of each stream
        self._unsent: dict[str, None] = {}  # streams whose state must be sent, or removed if there is none
        self._announced: set[str] = set()  # streams that Home Assistant was told of since the last connect
        self._client = self._make_client()

    def start(self) -> None:
        """Connect, in a thread."""
        self._client.connect_async(self.address.host, self.address.port)
        self._client.loop_start()

    def add(self, result: StepAnswer | StreamStatus) -> None:
        """Publish a result; never waits."""
        stream = result.stream
        with self._changed:
            if isinstance(result, StepAnswer):
                state = _describe(result)
                if state is None:
                    return
                self._states[stream] = state
                self._states.move_to_end(stream)
            elif result.health == DELETED:
                self._states.pop(stream, None)
            elif stream not in self._states:
                return  # a stream that has not answered since the start
            else:
                kept = {key: value for key, value in self._states[stream].items() if key not in ESTIMATE}
                kept |= {"health": result.health, "camera": result.camera} | describe_estimate(result)
                self._states[stream] = kept
            self._unsent[stream] = None
            while len(self._states) > MOST_STREAMS:
                oldest, _ = self._states.popitem(last=False)
                self._announced.discard(oldest)
                self._unsent.pop(oldest, None)
            while len(self._unsent) > 2 * MOST_STREAMS:  # others were deleted while there was no broker
                del self._unsent[next(iter(self._unsent))]
            self._send_unsent()

    def close(self) -> None:
        """Publish what waits, within seconds, and say goodbye."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._connected and self._unsent), _CLOSE_SECONDS)
            last = self._send(self._available, "offline") if self._connected else None
        if last is not None:
            with contextlib.suppress(RuntimeError, ValueError):  # the connection was lost
                last.wait_for_publish(_CLOSE_SECONDS)
        client = self._client
        client.disconnect()
        client.loop_stop()
        # Without a cycle, its last reference closes its sockets.
        client.on_connect = client.on_connect_fail = client.on_disconnect = client.on_publish = None

    def _make_client(self) -> Client:
        paho = require("paho.mqtt.client", "mqtt", "lmr serve --mqtt")
        client: Client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        if self.address.tls:
            client.tls_set()
        if self.address.user is not None:
            client.username_pw_set(self.address.user, self.address.password)
        client.reconnect_delay_set(*_RETRY)
        client.will_set(self._available, "offline", qos=1, retain=True)
        client.on_connect, client.on_disconnect = self._note_connect, self._note_disconnect
        client.on_connect_fail = lambda *_: self._warn("cannot be reached")
        client.on_publish = self._note_written
        return client

    # Called by the thread of paho.

    def _note_connect(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._warn(f"refused the connection: {reason}")
            return
        LOGGER.info("mqtt connected", extra={"fields": {"broker": str(self.address)}})
        with self._changed:
            self._connected, self._warned, self._waiting = True, False, 0
            self._announced.clear()  # a broker that was restarted may have lost what it retained
            self._unsent |= dict.fromkeys(self._states)
            self._send(self._available, "online")
            self._send_unsent()

    def _note_disconnect(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self._connected = False
            self._changed.notify_all()
        if reason.is_failure:
            self._warn(f"was lost: {reason}")

    def _note_written(self, client: Client, data: Any, number: int, reason: Any, properties: Any) -> None:
        with self._changed:
            self._waiting -= 1
            self._send_unsent()
            self._changed.notify_all()

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            LOGGER.warning("the MQTT broker %s %s; trying again", self.address, problem)

    # With the lock.

    def _send_unsent(self) -> None:
        """Send states until too many messages wait to be written; the others follow when these are."""
        while self._connected and self._unsent and self._waiting < MOST_WAITING:
            stream = next(iter(self._unsent))
            del self._unsent[stream]
            state = self._states.get(stream)
            if state is None:
                self._announced.discard(stream)
                for topic in (self._name_topic(stream), *(self._name_discovery(stream, key) for key in _SENSORS)):
                    self._send(topic, "")
                continue
            if stream not in self._announced:
                self._announced.add(stream)
                for key in _SENSORS:
                    self._send(self._name_discovery(stream, key), json.dumps(self._describe_sensor(stream, key)))
            self._send(self._name_topic(stream), json.dumps(state, ensure_ascii=False, allow_nan=False))

    def _send(self, topic: str, payload: str) -> MQTTMessageInfo:
        """Have paho write a retained message; one that is lost with the connection is sent again after the next."""
        self._waiting += 1
        return self._client.publish(topic, payload, qos=0, retain=True)

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
