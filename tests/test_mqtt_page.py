"""The program of docs/mqtt.md against a real service and Frigate's two routes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from live_server import run_live_server
from service_maker import make_file

pytestmark = pytest.mark.slow

(PROGRAM,) = re.findall(
    r"```python\n(.*?)```",
    (Path(__file__).parent.parent / "docs" / "mqtt.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


def make_event(kind: str = "update", when: float = 10.0, **values: Any) -> dict[str, Any]:
    """A message as in Frigate's documentation, as far as the program reads it."""
    after = {"id": "1607123955.47-mx", "camera": "front_door", "label": "car", "snapshot": {"frame_time": when}}
    return {"type": kind, "before": {}, "after": after | values}


@pytest.mark.parametrize(("chunk", "seconds"), [(bytes(10**6), 0), (b"x", 3)])
def test_answer_without_an_end_is_given_up(chunk: bytes, seconds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It would keep all other objects waiting."""
    sent, clock = list[int](), itertools.count(step=seconds)

    def drip() -> Iterator[bytes]:
        while len(sent) < 20:
            sent.append(len(chunk))
            yield chunk

    names: dict[str, Any] = {"__name__": "example"}
    exec(PROGRAM, names)
    for client in ("frigate", "service"):
        names[client].close()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=drip()))
    names["frigate"] = httpx.Client(transport=transport, base_url="http://frigate")
    names["time"] = SimpleNamespace(monotonic=lambda: next(clock))
    names["take"](None, None, SimpleNamespace(payload=json.dumps(make_event())))
    names["frigate"].close()
    assert "takes more than 10 MB or 10 s" in capsys.readouterr().out
    assert len(sent) < 20


def test_each_snapshot_gets_a_sub_label_once() -> None:
    labels: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            assert str(request.url).endswith("/api/events/1607123955.47-mx/snapshot.jpg?crop=1")
            return httpx.Response(200, content=make_file())
        assert request.url.path == "/api/events/1607123955.47-mx/sub_label"
        labels.append(json.loads(request.content))
        return httpx.Response(200)

    with run_live_server(["automobile", "truck"], "photo") as url:
        names: dict[str, Any] = {"__name__": "example"}
        exec(PROGRAM.replace("http://127.0.0.1:8080", url), names)
        names["frigate"].close()
        names["frigate"] = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://frigate")
        for event in (make_event(), make_event(), make_event(label="dog"), make_event(snapshot=None)):
            names["label_object"](event)
        names["label_object"](make_event("end", 12.0))
        names["label_object"](make_event("update", 13.0))
        names["label_object"](make_event("end", 13.0))  # nothing new, and forgotten
        assert [one.seq for one in names["service"].streams()] == [3]
        names["service"].close()
    assert len(labels) == 3
    assert all(one["subLabel"] in ("automobile", "truck") and 0 < one["subLabelScore"] <= 1 for one in labels)
    assert names["done"] == {}
