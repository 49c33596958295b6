"""A watch comes back from its form in a state; a text or tensors of another form are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lmr
from engine_maker import make_images, make_method
from lmr.core.state import decode_state, encode_state
from lmr.watch.watch_file import pack_all, unpack_all
from lmr.watch.watched import Watched


@pytest.fixture(scope="module")
def content() -> bytes:
    """The state of a stream with snapshots and events."""
    watched = make()
    for k in range(6):
        watched.step(make_images("a", k))
    watched.rollback()
    for k in range(6, 13):
        watched.step(make_images("a", k))
    watch = watched.watches[0]
    assert watch.snapshots
    assert watch.events
    return watched.dump()


def make() -> Watched:
    made = make_method("lmr", 1)
    assert isinstance(made, Watched)
    return made


def test_watch_survives_its_form(content: bytes) -> None:
    one, other = make(), make()
    one.restore(content)
    text, tensors = pack_all(one.watches)
    other.watches = unpack_all(text, tensors, [0], one.classifier.classes)
    assert pack_all(other.watches)[0] == text
    assert other.events == one.events
    assert isinstance(next(iter(other.watches[0].counts)), str)


def change(key: str, value: Any, part: str = "") -> Callable[[dict[str, Any]], object]:
    return lambda watch: (watch[part] if part else watch).update({key: value})


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (change("images", True), "images"),
        (change("more", 1), "keys"),
        (lambda watch: watch["events"][0]["signals"].pop("drift"), "signals"),
        (lambda watch: watch["events"][0]["signals"].update(sure_classes="5"), "sure_classes"),
        (change("level", "well", "health"), "Level"),
        (lambda watch: watch["events"][0].update(alarms=["x" * 50]), "Alarm"),
        (lambda watch: watch["snapshots"].pop(), "belong to nothing"),
    ],
)
def test_reasons(content: bytes, forge: Callable[[dict[str, Any]], object], reason: str) -> None:
    tensors, facts = decode_state(content, "the original")
    watches = json.loads(facts["watch"])
    forge(watches[0])
    with pytest.raises(lmr.LmrError, match=reason):
        make().restore(encode_state(tensors, facts | {"watch": json.dumps(watches)}))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("watch/0/classes", torch.full((2, 6), 1.0, dtype=torch.float64), "not of 6 classes"),
        ("watch/0/snapshot/77/norms", torch.zeros(1), "belong to nothing"),
        ("watch/9/sums", torch.zeros(5).double(), "belong to nothing"),
    ],
)
def test_tensors(content: bytes, name: str, value: torch.Tensor, reason: str) -> None:
    tensors, facts = decode_state(content, "the original")
    with pytest.raises(lmr.LmrError, match=reason):
        make().restore(encode_state(tensors | {name: value}, facts))


def test_text_that_is_nested_without_end(content: bytes) -> None:
    tensors, facts = decode_state(content, "the original")
    with pytest.raises(lmr.LmrError, match="nested too deeply"):
        make().restore(encode_state(tensors, facts | {"watch": "[" * 100_000 + "]" * 100_000}))
