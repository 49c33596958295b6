"""A real MQTT broker on a free port of this machine, and a client that remembers what it receives."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client

from lmr.service.network import find_free_port

PROGRAM = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
SETTLED = "test/settled"
WAIT = 60.0  # seconds; against hanging alone


def needs_broker(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts mosquitto."""
    return pytest.mark.slow(pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")(test))


class Broker:
    """mosquitto without persistence: what is retained ends with the process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = find_free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\n" + "\n".join(options)
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert PROGRAM is not None
        self._process = subprocess.Popen([PROGRAM, "-c", str(self._config)], stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("mosquitto did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def run_broker(folder: Path, *options: str) -> Iterator[Broker]:
    broker = Broker(folder, *options)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


class Subscriber:
    """All messages of a broker: the last of each topic, retained ones included."""

    def __init__(self, broker: Broker, topic: str = "#") -> None:
        self.last: dict[str, str] = {}
        self.all: list[tuple[str, str]] = []
        self._changed = threading.Condition()
        self.client = Client(CallbackAPIVersion.VERSION2)
        self.client.on_message = self._note
        self.client.on_connect = lambda client, *_: client.subscribe([(topic, 1), (SETTLED, 1)])
        self.client.on_subscribe = lambda client, *_: client.publish(SETTLED, "", qos=1)
        self.client.connect("127.0.0.1", broker.port)
        self.client.loop_start()

    def _note(self, client: Any, data: Any, message: Any) -> None:
        with self._changed:
            text = message.payload.decode()
            self.all.append((message.topic, text))
            self.last[message.topic] = text
            self._changed.notify_all()

    def wait_for(self, found: Callable[[dict[str, str]], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: found(self.last), WAIT), self.last

    def __enter__(self) -> Subscriber:
        """Wait until all retained messages are here."""
        self.wait_for(lambda last: SETTLED in last)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()
