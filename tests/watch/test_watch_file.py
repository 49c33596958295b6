"""A watch that was read can be used like one that was made here, whoever wrote it; anything else is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lmr
from engine_maker import make_images, make_method
from lmr.core.state import decode_state, encode_state
from lmr.watch.signals import Alarm
from lmr.watch.watch_file import pack_all, unpack_all
from lmr.watch.watched import Watched
from state_forger import forge_states


@pytest.fixture(scope="module")
def content() -> bytes:
    """The state of a stream with snapshots, canaries, events and something to undo."""
    watched = make()
    for k in range(6):
        watched.step(make_images("a", k))
    watched.rollback()
    for k in range(6, 13):
        watched.step(make_images("a", k))
    watch = watched.watches[0]
    assert watch.undo
    assert watch.snapshots
    assert watch.canaries.labels
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
    other.watches = unpack_all(text, tensors, [0], one.classifier)
    assert pack_all(other.watches)[0] == text
    assert other.events == one.events
    assert isinstance(next(iter(other.watches[0].counts)), str)


def test_forged_states_are_refused_or_as_good_as_others(content: bytes) -> None:
    watched, accepted = make(), 0
    for forged in forge_states(content, seed=7, count=80):
        watched.forget()
        try:
            watched.restore(forged)
        except lmr.LmrError:
            continue
        accepted += 1
        for act in (watched.rollback, watched.undo, watched.pause, watched.resume, watched.reset, watched.undo):
            answer = watched.step(make_images("a", 20))
            assert answer.logits.isfinite().all()
            json.dumps(answer.info, allow_nan=False)
            try:
                act(0)
            except lmr.LmrError:
                continue
        watched.restore(watched.dump())
    assert 0 < accepted < 30  # such as with another number of images


def change(key: str, value: Any, part: str = "") -> Callable[[dict[str, Any]], object]:
    return lambda watch: (watch[part] if part else watch).update({key: value})


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (change("drift", float("nan")), "its watch.drift is not of its type"),
        (change("images", True), "its watch.images"),
        (change("images", -1), "its watch.images"),
        (change("more", 1), "its watch is not of its type"),
        (lambda watch: watch["events"][0]["signals"].pop("drift"), "its watch.events.signals is not of its type"),
        (lambda watch: watch["events"][0]["signals"].update(sure_classes="5"), "sure_classes is not of its type"),
        (change("rollbacks", [10**9], "health"), "steps that are still to come"),
        (change("born", 10**9, "health"), "steps that are still to come"),
        (change("level", "rolled back", "health"), "rests without an end"),
        (change("level", "well", "health"), "'well' is not a valid Level"),
        (change("history", [2.0], "canaries"), "shares"),
        (lambda watch: watch["snapshots"].reverse(), "not in order"),
        (change("first", 10**9), "still to come"),
        (change("counts", {"well": 1}), "'well' is not a valid Level"),
        (change("compared", 0), "do not weigh"),
        (change("drift", -1.0), "drift is negative"),
        (lambda watch: watch["events"][0].update(alarms=["x" * 50]), "is not a valid Alarm"),
        (lambda watch: watch["events"][0].update(step=10**6), "still to come"),
        (lambda watch: watch["events"].extend(watch["events"] * 100), "too many events"),
        (lambda watch: watch["canaries"]["labels"].__setitem__(0, 99), "labels of no class"),
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
        ("watch/0/sums", torch.tensor([0.0, 0.0, 1e300, 1.0, 0.0], dtype=torch.float64), "sums are larger"),
        ("watch/0/classes", torch.full((3, 6), 1e300, dtype=torch.float64), "do not weigh"),
        ("watch/0/classes", torch.full((2, 6), 1.0, dtype=torch.float64), "another shape"),
        ("watch/0/snapshot/77/norms", torch.zeros(1), "belong to nothing"),
        ("watch/9/sums", torch.zeros(5).double(), "belong to nothing"),
        ("watch/0/canaries", torch.zeros(()), "canaries have another type"),
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


def test_names_of_alarms_are_a_closed_set() -> None:
    assert [str(alarm) for alarm in Alarm] == [
        "not finite",
        "concentration",
        "entropy",
        "doubt",
        "canaries",
        "drift",
    ]
