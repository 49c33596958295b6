"""Answers on MQTT: what a real broker holds, also after it or the connection broke, and that nobody waits for it."""

from __future__ import annotations

import json
import socket
import string
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from closed_port import hold_closed_port
from engine_maker import ask, make_engine, make_request, wait
from lmr.core.answer import Answer
from lmr.core.errors import LmrError
from lmr.service import mqtt
from lmr.service.engine.records import DELETED
from lmr.service.engine.requests import StepAnswer
from lmr.service.mqtt import MOST_WAITING, MqttAddress, MqttPublisher
from mosquitto import SETTLED, Broker, Subscriber, needs_broker, run_broker
from scripted_engine import make_status


def make_answer(stream: str, *results: Answer, seq: int = 1) -> StepAnswer:
    found = results or (Answer("cat", 0.75, frozen="dog"),)
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
    publisher.add(make_answer("front.door", Answer("cat", 0.6), Answer(error="not an image")))
    publisher.add(make_answer("front.door", Answer("cat", 0.6), Answer(None, 0.3), seq=2))
    publisher.add(make_answer("front.door", Answer(error="not an image"), seq=3))  # says nothing of the stream
    publisher.add(make_answer("yard"))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: "lmr/yard/state" in last)
        assert watched.last["lmr/available"] == "online"
        assert json.loads(watched.last["lmr/yard/state"]) | {"time": 0} == {
            "label": "cat", "probability": 0.75, "known": None, "top": [], "frozen": "dog", "health": "ok",
            "labels": ["cat"], "seq": 1, "time": 0,
        }  # fmt: skip
    with Subscriber(broker) as later:  # what is retained
        state = json.loads(later.last["lmr/front.door/state"])
        assert (state["label"], state["labels"], state["seq"]) == ("unknown", ["cat", "unknown"], 2)
        found = {topic: json.loads(text) for topic, text in later.last.items() if topic.startswith("homeassistant/")}
        assert len(found) == 12
        assert all(set(topic) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-/") for topic in found)
        assert len({one["unique_id"] for one in found.values()}) == 12
        label = found["homeassistant/sensor/lmr_-yard/label/config"]
        assert label["state_topic"] == "lmr/yard/state"
        assert label["value_template"] == "{{ value_json.label }}"
        assert label["availability_topic"] == "lmr/available"
        assert label["device"] == {
            "identifiers": ["lmr_-yard"],
            "name": "yard",
            "manufacturer": "lmr",
            "model": "photo",
        }
        probability = found["homeassistant/sensor/lmr_-yard/probability/config"]
        assert (probability["unit_of_measurement"], probability["state_class"]) == ("%", "measurement")


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


@needs_broker
def test_the_estimated_accuracy_is_a_sensor(broker: Broker, publisher: MqttPublisher) -> None:
    engine = make_engine()
    engine.listen_results(publisher.add)
    ask(engine, make_request("yard", 0), make_request("door", 0))
    status = wait(engine, engine.add_labels("yard", 1, ["class 1", "class 1", None]))
    wait(engine, engine.add_labels("door", 1, ["class 1", None, None]))
    wait(engine, engine.act("door", "reset"))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: "online" in last.get("lmr/available", ""))
    publisher.close()  # after all is published
    with Subscriber(broker) as later:
        state = json.loads(later.last["lmr/yard/state"])
        assert state["estimated_accuracy"] == status.estimated_accuracy
        assert (state["estimated_interval"], state["estimated_labels"]) == ([*status.estimated_interval], 2)
        assert "estimated_accuracy" not in json.loads(later.last["lmr/door/state"])
        sensor = json.loads(later.last["homeassistant/sensor/lmr_-yard/estimated_accuracy/config"])
        assert (sensor["name"], sensor["unit_of_measurement"]) == ("Estimated accuracy", "%")
        assert "value_json.estimated_accuracy is number" in sensor["value_template"]
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
        assert "homeassistant/sensor/lmr_-yard/label/config" in watched.last


@needs_broker
def test_a_stream_that_is_deleted_after_a_restart_leaves_nothing(broker: Broker, publisher: MqttPublisher) -> None:
    publisher.add(make_answer("front.door"))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: "lmr/front.door/state" in last)
    publisher.close()
    restarted = MqttPublisher(MqttAddress.read(broker.url))
    restarted.start()
    restarted.add(make_status("front.door", health=DELETED))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: last.get("lmr/available") == "online")
    restarted.close()  # after all is published
    with Subscriber(broker) as later:
        assert set(later.last) == {"lmr/available", SETTLED}


@needs_broker
def test_a_stream_that_is_deleted_while_the_broker_is_down_leaves_nothing(
    broker: Broker, publisher: MqttPublisher
) -> None:
    with Subscriber(broker) as watched:
        publisher.add(make_answer("door"))
        watched.wait_for(lambda last: "lmr/door/state" in last)
    broker.stop()
    publisher.add(make_answer("door"))
    publisher.add(make_status("door", health=DELETED))
    for seq in range(MOST_WAITING):  # more than the queue holds
        publisher.add(make_answer("yard", seq=seq))
    publisher.add(make_answer("gate"))
    broker.start()
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: "lmr/gate/state" in last)
    publisher.close()
    with Subscriber(broker) as later:
        assert not [topic for topic in later.last if "door" in topic]


@needs_broker
def test_a_stream_that_the_store_lacks_after_a_restart_leaves_nothing(
    broker: Broker, publisher: MqttPublisher, tmp_path: Path
) -> None:
    """It was deleted without a broker, and the service ended before there was one again."""
    engine = make_engine(tmp_path / "store.sqlite")
    engine.listen_results(publisher.add)
    ask(engine, make_request("yard", 0), make_request("door", 0))
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: {"lmr/yard/state", "lmr/door/state"} <= set(last))
    publisher.close()
    wait(engine, engine.act("door", "delete"))
    engine.close()
    engine = make_engine(tmp_path / "store.sqlite")
    restarted = MqttPublisher(MqttAddress.read(broker.url))
    restarted.start(engine.is_gone)
    with Subscriber(broker) as watched:
        watched.wait_for(lambda last: not last.get("lmr/door/state", ""))
        restarted.add(make_answer("yard", seq=2))
        watched.wait_for(lambda last: json.loads(last["lmr/yard/state"])["seq"] == 2)
    restarted.close()  # after all is published
    with Subscriber(broker) as later:
        assert not [topic for topic in later.last if "door" in topic]
        assert len([topic for topic in later.last if "yard" in topic]) == 7
    engine.close()


def test_streams_are_not_gone_where_nobody_knows() -> None:
    engine = make_engine()
    assert not engine.is_gone("yard")
    engine.close()
    assert not engine.is_gone("yard")


@needs_broker
def test_a_message_that_the_broker_refuses_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mqtt, "_RETRY", (0.1, 1))
    long = make_answer("long", *[Answer("cat" * 100, 0.5)] * 32)
    with run_broker(tmp_path, "max_packet_size 2000") as broker:
        publisher = MqttPublisher(MqttAddress.read(broker.url))
        publisher.start()
        with Subscriber(broker) as watched:
            for answer in (make_answer("yard"), long, make_answer("door"), long, make_answer("gate")):
                publisher.add(answer)
            watched.wait_for(lambda last: "lmr/gate/state" in last)
            assert {"lmr/yard/state", "lmr/door/state", "lmr/available"} <= set(watched.last)
            assert "lmr/long/state" not in watched.last
        assert publisher.dropped >= 2
        assert caplog.text.count("it is dropped") == 1
        publisher.add(make_answer("long"))  # a small one of the same stream
        with Subscriber(broker) as watched:
            watched.wait_for(lambda last: "lmr/long/state" in last)
        publisher.close()


def test_messages_have_a_bounded_size() -> None:
    """A request may ask for 1,000 classes."""
    top = tuple((f"{'long' * 125} {k}", 0.001) for k in range(1000))
    answer = Answer(top[0][0], 0.001, top=top, frozen=top[1][0], frozen_top=top)
    state = mqtt._describe(make_answer("yard", *[answer] * 32))
    assert state is not None
    assert (len(state["top"]), len(state["frozen_top"])) == (mqtt.MOST_TOP, mqtt.MOST_TOP)
    assert len(json.dumps(state)) < 100_000


def test_devices_of_streams_have_names_of_their_own() -> None:
    streams = [
        "cam.2",
        "cam_2",
        "cam_2_73a704",
        "cam_2e-2",
        "cam__2",
        "cam-2",
        "cam",
        "cam._2",
        "cam_.2",
        "2e-x.y",
        "y",
    ]
    names = [
        MqttPublisher(MqttAddress.read(f"mqtt://host/{prefix}"))._name_device(stream)
        for prefix in ("", "cam", "cam.2", "cam/2", "cam_2", "a", "a.x")
        for stream in streams
    ]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set(string.ascii_letters + string.digits + "_-") for name in names)


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
    client = weakref.ref(publisher._client)
    del publisher
    assert client() is None  # with its sockets, before any garbage is collected


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


def test_the_password_may_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text("from a file\n")
    assert MqttAddress.read("mqtt://me@host", file).password == "from a file"
    monkeypatch.setenv("LMR_MQTT_PASSWORD", "from outside")
    assert MqttAddress.read("mqtt://me@host").password == "from outside"
    assert MqttAddress.read("mqtt://me@host", file).password == "from a file"
    assert MqttAddress.read("mqtt://me:own@host").password == "own"
    assert MqttAddress.read("mqtt://host") == MqttAddress("host", 1883)
    for text, reason in (("mqtt://me:own@host", "given twice"), ("mqtt://host", "Give the user")):
        with pytest.raises(LmrError, match=reason) as refused:
            MqttAddress.read(text, file)
        assert "own" not in str(refused.value)
        assert "from a file" not in str(refused.value)
    file.write_text("\n")
    with pytest.raises(LmrError, match=r"password file .* is empty"):
        MqttAddress.read("mqtt://me@host", file)


def test_a_broken_camera_is_in_the_state() -> None:
    broken = replace(make_answer("cam", Answer("cat", 0.6, trusted=False)), adaptation={"camera": "black"})
    state = mqtt._describe(broken)
    assert state is not None
    assert (state["camera"], state["trusted"]) == ("black", False)
