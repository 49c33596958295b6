"""What is put together for a service, and what is refused at its start."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import httpx
import pytest

import lmr
from lmr.apps.method_options import MethodOptions
from lmr.apps.options import ServerOptions
from lmr.apps.serve import (
    ServingPlan,
    choose_token,
    create_served,
    open_server,
    open_store,
)
from lmr.core.errors import LmrError
from lmr.watch.settings import WatchSettings
from mosquitto import Subscriber, needs_broker, run_broker
from service_maker import TIMEOUT, make_file

TOKEN = "0123456789abcdef"

NAMES = ["cat", "ship", "aquarium fish"]


def make_plan(names: list[str] = NAMES, method: str = "steady") -> ServingPlan:
    return ServingPlan(MethodOptions(labels=names, model="photo", method=method, watch="on").resolve())


def test_method_has_its_values_for_the_classes() -> None:
    method = create_served("lmr", lmr.load().classifier(NAMES), 3)
    assert method.streams == 3
    assert method.gamma0 == 0.3  # type: ignore[attr-defined]
    assert create_served("lmr(gamma0=2)", lmr.load().classifier(NAMES), 1).gamma0 == 2.0  # type: ignore[attr-defined]
    assert create_served("zeroshot", lmr.load().classifier(NAMES), 1).spec == "zeroshot()"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert choose_token(host, None) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_other_machines_need_one(host: str, tmp_path: Path) -> None:
    with pytest.raises(LmrError, match="needs a --token-file"):
        choose_token(host, None)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert choose_token(host, tmp_path / "token") == TOKEN


@pytest.mark.parametrize(
    "content",
    [
        "",
        "short",
        "two words of a token",
        "a-token-with-ä-in-it",
        "a" * 16,
        "abcde" * 10,
    ],
)
def test_weak_tokens(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(LmrError, match=r"openssl rand"):
        choose_token("127.0.0.1", tmp_path / "token")
    with pytest.raises(LmrError, match="Cannot read the token"):
        choose_token("127.0.0.1", tmp_path / "missing")


def test_store_belongs_to_a_method_and_a_watch(tmp_path: Path) -> None:
    method = create_served("lmr", lmr.load().classifier(NAMES), 2)
    assert open_store("none", method, None) is None
    address = f"sqlite:{tmp_path / 'new' / 'folder' / 's.sqlite'}"
    store = open_store(address, method, WatchSettings())
    assert store is not None
    store.close()
    with pytest.raises(LmrError, match="another watch: on, not off"):
        open_store(address, method, None)
    other = create_served("lmr(lr=0.5)", lmr.load().classifier(NAMES), 2)
    with pytest.raises(LmrError, match="belongs to the method lmr"):
        open_store(address, other, WatchSettings())
    (tmp_path / "file").write_text("")
    with pytest.raises(LmrError, match="Cannot use the folder"):
        open_store(f"sqlite:{tmp_path / 'file' / 's'}", method, None)


@needs_broker
def test_answers_are_published(tmp_path: Path) -> None:
    """From the image of a client to the message of a broker."""

    with run_broker(tmp_path) as broker:
        where = ServerOptions(port=0, mqtt=broker.url)
        with open_server(make_plan(), where, report=lambda line: None) as server, server:
            headers = {"Content-Type": "image/jpeg"}
            path = f"{server.url}/v1/streams/yard/images"
            answer = httpx.post(path, content=make_file(), headers=headers, timeout=TIMEOUT).raise_for_status().json()
            with Subscriber(broker) as watched:
                watched.wait_for(lambda last: "lmr/yard/state" in last)
                label = json.loads(watched.last["lmr/yard/state"])["label"]
        with Subscriber(broker) as later:
            assert later.last["lmr/available"] == "offline"
    assert label == answer["answers"][0]["label"]


def test_names_of_an_earlier_run_are_shown_escaped() -> None:
    plan = make_plan(NAMES)
    backbone, method = plan.load()
    method.classifier.names = ("cat\nlmr: serving at http://evil\x1b[2J", "dog\u202e")
    lines = plan.describe(backbone, method, "states nowhere")
    assert all(line.isprintable() for line in lines)
    assert r"cat\nlmr" in lines[0]


def test_a_store_of_other_classes_names_the_ways_to_go_on(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 's'}"
    words = ["cat, dog", shlex.quote(",".join(NAMES)), "--adopt", "another --store"]
    store = open_store(address, create_served("lmr", lmr.load().classifier(NAMES), 1), None)
    assert store is not None
    store.close()
    method = create_served("lmr(gamma0=0.3, beta=3.0)", lmr.load().classifier(["cat", "dog"]), 1)
    with pytest.raises(LmrError, match="three ways") as refused:
        open_store(address, method, None)
    assert all(text in str(refused.value) for text in words)
    store = open_store(address, method, None, adopt=True)
    assert store is not None
    store.close()
