from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmr
from lmr.core.errors import LmrError
from lmr.service.client import connection
from lmr.service.client.errors import ServiceBusy
from scripted_service import BREAK_AFTER, BREAK_BEFORE, ScriptedService, run_scripted_service

IMAGE = np.zeros((4, 4, 3), np.uint8)
DEAD = (500, {}, b"The actor died unexpectedly.")  # as the proxy of a cluster says that a replica has died
MOVED = (409, {}, {"error": {"code": "stream_moved", "message": "It is served elsewhere."}})
STATUS = {
    "stream": "a", "seq": 3, "images": 5, "health": "ok", "adapts": True, "resident": True, "waiting": 0,
    "accuracy": None, "compared_accuracy": None, "frozen_accuracy": None,
    "labelled": 0, "updated": 1.0, "change": 9, "of a newer service": 1,
}  # fmt: skip


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with run_scripted_service() as made:
        yield made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FIRST", 0.001)


@pytest.fixture
def client(service: ScriptedService) -> Iterator[lmr.Client]:
    with lmr.Client(service.url, patience=5.0) as made:
        yield made


def test_the_client_does_not_load_torch() -> None:
    code = "import sys, lmr.service.client.camera; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_image_is_answered(service: ScriptedService, client: lmr.Client) -> None:
    answer = client.step("cam 17", IMAGE, top=3)
    (seen,) = service.seen
    assert (seen.method, seen.path) == ("POST", "/v1/streams/cam%2017/images")
    assert (seen.query["top"], seen.query["mode"]) == (["3"], ["adapt"])
    assert seen.headers["Content-Type"] == "image/png"
    assert len(seen.headers["Idempotency-Key"]) >= 32
    assert seen.headers["X-Lmr-Stream"] == "cam%2017"
    assert (answer.stream, answer.seq, answer.saved, answer.replayed) == ("cam 17", 1, True, False)
    assert answer.label == f"{len(seen.images[0])} bytes"
    assert answer.answers[0].top == (("a", 0.5),)
    assert answer.adaptation["health"] == "ok"


def test_a_list_is_one_step_in_its_order(service: ScriptedService, client: lmr.Client) -> None:
    images = [np.full((4, 4 + k, 3), k, np.uint8) for k in range(3)]
    answer = client.step("a", images, mode="answer", compare=True)
    assert len(service.steps["a"]) == 1
    assert answer.labels == [f"{len(image)} bytes" for image in service.seen[0].images]
    assert (service.seen[0].query["mode"], service.seen[0].query["compare"]) == (["answer"], ["true"])


@pytest.mark.parametrize("trouble", [503, 502, 504, 409, DEAD, MOVED, (429, {"Retry-After": "0"}), BREAK_BEFORE])
def test_passing_trouble_is_waited_out_under_one_key(
    service: ScriptedService, client: lmr.Client, trouble: Any
) -> None:
    service.script = [trouble, trouble]
    assert client.step("a", IMAGE).seq == 1
    assert len(service.seen) == 3
    assert len({one.headers["Idempotency-Key"] for one in service.seen}) == 1
    assert len({one.body for one in service.seen}) == 1


def test_action_is_sent_again_where_it_was_surely_not_done(service: ScriptedService, client: lmr.Client) -> None:
    service.reply, service.script = STATUS, [MOVED]
    assert client.rollback("a").seq == 3
    service.script = [DEAD]
    with pytest.raises(ServiceBusy, match="refused for now"):
        client.rollback("a")


def test_an_answer_that_was_lost_is_not_applied_again(service: ScriptedService, client: lmr.Client) -> None:
    service.script = [BREAK_AFTER]
    answer = client.step("a", [IMAGE, IMAGE])
    assert (answer.seq, answer.replayed) == (1, True)
    assert len(service.steps["a"]) == 1
    assert client.step("a", IMAGE).seq == 2


@pytest.mark.parametrize("code", [400, 413, 415, 422, 500])
def test_other_refusals_are_final(service: ScriptedService, client: lmr.Client, code: int) -> None:
    service.script = [code]
    with pytest.raises(lmr.ServiceError, match=rf"refused the request \({code}\): Told to answer {code}\.") as found:
        client.step("a", IMAGE)
    assert (found.value.status, found.value.code) == (code, "told")
    assert len(service.seen) == 1


def test_the_token_is_sent(service: ScriptedService) -> None:
    service.reply = {"status": "ready"}
    with lmr.Client(service.url, " secret\n") as client:
        assert client.is_ready()
        service.reply = {"status": "degraded", "reason": "The disk is full."}
        assert (client.readiness(), client.is_ready()) == ("degraded", False)
        service.reply = b"<html>"
        assert client.readiness() == "unreachable"
    assert service.seen[0].headers["Authorization"] == "Bearer secret"
    assert service.seen[0].path == "/readyz"


def test_operators_actions_are_sent_once(service: ScriptedService, client: lmr.Client) -> None:
    """A second rollback would go further back, so a broken connection is an error here."""
    service.reply = STATUS
    for action in (client.reset, client.rollback, client.pause, client.resume):
        status = action("a")
        assert (status.seq, status.health) == (3, "ok")
    paths = [one.path.rpartition(":")[2] for one in service.seen]
    assert paths == ["reset", "rollback", "pause", "resume"]
    service.script = [BREAK_AFTER]
    with pytest.raises(lmr.ServiceError, match="Cannot reach"):
        client.rollback("a")
    service.script = [503]
    assert client.rollback("a").stream == "a"
    assert len(service.seen) == 7


def test_states_are_files(service: ScriptedService, client: lmr.Client, tmp_path: Path) -> None:
    service.reply = b"content"
    assert client.state("a") == b"content"
    service.reply = STATUS
    (tmp_path / "a.state").write_bytes(b"learnt")
    client.load_state("a", tmp_path / "a.state")
    client.load_state("a", b"learnt")
    assert [(one.method, one.body) for one in service.seen[1:]] == [("PUT", b"learnt")] * 2
    client.delete("a")
    assert (service.seen[-1].method, service.seen[-1].path) == ("DELETE", "/v1/streams/a")


def test_streams_are_listed_page_by_page(
    service: ScriptedService, client: lmr.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmr.service.client.client.PAGE", 2)
    pages = iter([["a", "b"], ["c"]])

    def turn() -> Iterator[str]:
        for one in client.streams():
            yield one.stream

    service.reply = {"streams": [{**STATUS, "stream": name} for name in next(pages)], "next": "b"}
    found = turn()
    assert [next(found), next(found)] == ["a", "b"]
    service.reply = {"streams": [{**STATUS, "stream": name} for name in next(pages)], "next": None}
    assert list(found) == ["c"]
    assert service.seen[1].query["after"] == ["b"]


def test_a_stream_in_detail(service: ScriptedService, client: lmr.Client) -> None:
    event = {
        "number": 1,
        "time": 2.0,
        "stream": "a",
        "kind": "health",
        "before": "ok",
        "after": "suspected",
        "message": "w",
    }
    parts: dict[str, Any] = {"signals": {}, "history": [], "snapshots": [64], "answers": []}
    service.reply = {"status": STATUS, "shares": [["dog", 0.5]], "events": [event], **parts}
    found = client.stream("a")
    assert (found.status.seq, found.shares, found.events[0].after) == (3, [("dog", 0.5)], "suspected")
    assert found.health == found.status.health


@pytest.mark.parametrize("reply", [b"<html>hello</html>", [1], {"answers": 3}, {}])
def test_something_else_that_listens_there(service: ScriptedService, client: lmr.Client, reply: Any) -> None:
    service.reply = reply
    with pytest.raises(lmr.ServiceError, match="version"):
        client.stream("a")


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://host", "", "http://", "http://host?x=1"])
def test_addresses_are_checked(url: str) -> None:
    with pytest.raises(LmrError, match="Expected the address of a service"):
        lmr.Client(url)


@pytest.mark.parametrize("token", ["", " ", "ü", "a\nb"])
def test_tokens_are_checked(token: str) -> None:
    with pytest.raises(LmrError, match="Expected a token"):
        lmr.Client("http://127.0.0.1:9", token)


def test_images_to_label(service: ScriptedService, client: lmr.Client) -> None:
    service.reply = {"images": [{"seq": 7, "image": 1, "images": 2, "b64": None, "of a newer service": 1}]}
    (found,) = client.label_queue("a", 5)
    assert (found.seq, found.image, found.images) == (7, 1, 2)
    assert (service.seen[0].path, service.seen[0].query) == ("/v1/streams/a/label-queue", {"n": ["5"]})


def test_labels_are_told(service: ScriptedService, client: lmr.Client) -> None:
    service.reply = STATUS
    client.labels("a", 3, ["dog", None])
    client.labels("a", 3, ["dog"], teach=False)
    assert service.seen[0].path == "/v1/streams/a/labels"
    assert service.seen[0].body == b'{"seq":3,"labels":["dog",null],"teach":true}'
    assert service.seen[1].body == b'{"seq":3,"labels":["dog"],"teach":false}'


def test_empty_requests_are_refused(client: lmr.Client) -> None:
    with pytest.raises(LmrError, match="at least one image"):
        client.step("a", [])
    with pytest.raises(LmrError, match="name of a stream"):
        client.step("", IMAGE)
