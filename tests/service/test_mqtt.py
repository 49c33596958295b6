"""Answers on MQTT: what a real broker holds, also after it or the connection broke, and that nobody waits for it."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from closed_port import hold_closed_port
from engine_maker import ask, make_engine, make_request, wait
from lmr.core.errors import LmrError
from lmr.service import mqtt
from lmr.service.engine.requests import ImageResult, StepAnswer
from lmr.service.engine.status import StreamStatus
from lmr.service.mqtt import MOST_WAITING, MqttAddress, MqttPublisher
from mosquitto import Broker, Subscriber, needs_broker, run_broker


def make_answer(stream: str, *results: ImageResult, seq: int = 1) -> StepAnswer:
    found = results or (ImageResult("cat", 0.75, frozen="dog"),)
    return StepAnswer(stream, seq, True, found, {"health": "ok"}, {})


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(mqtt, "_RETRY", (1, 1))
    with run_broker(tmp_path) as broker:
        yield broker


@pytest.fixture
def publisher(broker: Broker) -> Iterator[MqttPublisher]:
    publisher = MqttPublisher(MqttAddress.read(broker.url), "photo")
    publisher.start()
    yield publisher
    publisher.close()


@needs_broker
def test_streams_appear_in_home_assistant_with_their_last_answer(broker: Broker, publisher: MqttPublisher) -> None:
    publisher.add(make_answer("front.door", ImageResult("cat", 0.6), ImageResult(error="not an image")))
    publisher.add(make_answer("front.door", ImageResult("cat", 0.6), ImageResult(None, 0.3), seq=2))
    publisher.add(make_answer("front.door", ImageResult(error="not an image"), seq=3))  # says nothing of the stream
    publisher.add(make_answer("yard"))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: "lmr/yard/state" in last)
        assert watched.last["lmr/available"] == "online"
        assert json.loads(watched.last["lmr/yard/state"]) | {"time": 0} == {
            "label": "cat", "confidence": 0.75, "known": None, "frozen": "dog", "health": "ok", "labels": ["cat"],
            "seq": 1, "time": 0,
        }  # fmt: skip
    with Subscriber(broker) as later:  # what is retained
        state = json.loads(later.last["lmr/front.door/state"])
        assert (state["label"], state["labels"], state["seq"]) == ("unknown", ["cat", "unknown"], 2)
        found = {topic: json.loads(text) for topic, text in later.last.items() if topic.startswith("homeassistant/")}
        assert len(found) == 8
        assert all(set(topic) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-/") for topic in found)
        assert len({one["unique_id"] for one in found.values()}) == 8
        label = found["homeassistant/sensor/yard/label/config"]
        assert label["state_topic"] == "lmr/yard/state"
        assert label["value_template"] == "{{ value_json.label }}"
        assert label["availability_topic"] == "lmr/available"
        assert label["device"] == {"identifiers": ["lmr_yard"], "name": "yard", "manufacturer": "lmr", "model": "photo"}
        confidence = found["homeassistant/sensor/yard/confidence/config"]
        assert (confidence["unit_of_measurement"], confidence["state_class"]) == ("%", "measurement")


@needs_broker
def test_operators_change_the_health_and_delete_streams(broker: Broker, publisher: MqttPublisher) -> None:
    engine = make_engine()
    engine.listen_results(publisher.add)
    ask(engine, make_request("yard", 0), make_request("door", 0))
    wait(engine, engine.act("yard", "pause"))
    wait(engine, engine.act("door", "delete"))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: "online" in last.get("lmr/available", ""))
    publisher.close()  # after all is published
    with Subscriber(broker) as later:
        assert later.last["lmr/available"] == "offline"
        assert not [topic for topic in later.last if "door" in topic]
        state = json.loads(later.last["lmr/yard/state"])
        assert (state["health"], state["label"].partition(" ")[0]) == ("paused", "class")
    engine.close()


def test_a_repeated_answer_is_not_published_twice(tmp_path: Path) -> None:
    engine, found = make_engine(tmp_path / "store.sqlite"), list[StepAnswer | StreamStatus]()
    engine.listen_results(lambda result: 1 / 0)  # a listener that fails hurts nobody
    engine.listen_results(found.append)
    request = make_request("yard", 0, key="k", digest="d")
    first, again = ask(engine, request)[0], ask(engine, request)[0]
    assert dataclasses.replace(again, replayed=False) == first
    assert found == [first]
    engine.close()


@needs_broker
def test_a_broker_that_lost_everything_gets_it_again(broker: Broker, publisher: MqttPublisher) -> None:
    publisher.add(make_answer("yard"))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: "lmr/yard/state" in last)
    broker.stop()
    publisher.add(make_answer("door"))
    broker.start()
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: {"lmr/yard/state", "lmr/door/state"} <= set(last))
        assert watched.last["lmr/available"] == "online"
        assert "homeassistant/sensor/yard/label/config" in watched.last


@needs_broker
def test_the_will_says_that_the_service_is_gone(broker: Broker, publisher: MqttPublisher) -> None:
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: last.get("lmr/available") == "online")
        connection = publisher._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)  # as if the machine were gone
        watched.wait_for(lambda _: ("lmr/available", "offline") in watched.all)
        watched.wait_for(lambda last: last["lmr/available"] == "online")  # it has connected again


def test_without_a_broker_nothing_waits_and_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with hold_closed_port() as nowhere:
        publisher = MqttPublisher(MqttAddress.read(f"mqtt://user:secret@{nowhere}"))
        publisher.start()
        for seq in range(MOST_WAITING + 50):
            publisher.add(make_answer("yard", seq=seq))
        assert publisher.dropped == 50
        assert [result.seq for result in publisher._waiting] == list(range(50, MOST_WAITING + 50))
        publisher.close()
    assert not publisher._thread.is_alive()
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        "http://host",
        "mqtt://",
        "mqtt://user:secret@host:port",
        "mqtt://u:secret@host/a/#",
        "mqtt://u:secret#@host",
        "mqtt://host/+",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(LmrError, match="Expected a broker as mqtt://host") as caught:
        MqttAddress.read(text)
    assert "secret" not in str(caught.value)


def test_an_address_has_all_parts() -> None:
    address = MqttAddress.read("mqtts://me:p%40ss@[::1]:1234/house/lmr")
    assert address == MqttAddress("::1", 1234, True, "me", "p@ss", "house/lmr")
    assert str(address) == "mqtts://[::1]:1234"
    assert "p@ss" not in repr(address)
    assert MqttAddress.read("mqtt://host") == MqttAddress("host", 1883)
