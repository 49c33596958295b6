"""States as bytes: they come back bit for bit, and what did not change is not written again."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from safetensors.torch import load

import lmr
from engine_maker import CALM, make_images, make_method
from lmr.core.errors import LmrError
from lmr.core.labelled import PER_STEP
from lmr.service.engine.packing import LABELS, Packer, Written, decompress
from lmr.service.store.stored_types import StoredState


def make_served(rows: int = 3, spec: str = "lmr", watch: lmr.WatchSettings | None = CALM) -> Any:
    return lmr.Labelled(make_method(spec, rows, watch))


def step(method: Any, row: int, k: int) -> None:
    images = make_images("a", k)
    method.step(images, [row] * len(images))


def keep(kept: StoredState | None, new: StoredState) -> StoredState:
    """What a store has after ``new`` was written over ``kept``."""
    parts = {} if kept is None else dict(kept.parts)
    parts |= new.parts
    return dataclasses.replace(new, parts={name: part for name, part in parts.items() if part is not None})


def test_state_is_packed_step_by_step_and_comes_back() -> None:
    method = make_served()
    packer, written = Packer(method), Written()
    stored: StoredState | None = None
    seen: set[str] = set()
    for k in range(12):
        step(method, 1, k)
        if k == 7:
            method.rollback(1)
        (packed,) = packer.pack([1], [written])
        seen |= packed.parts.keys()
        stored = keep(stored, packed)
        again = packer.unpack(2, stored)
        assert method.dump([2]) == method.dump([1])
        assert again.keys() == written.keys() == stored.parts.keys()
    assert {name.partition("/")[0] for name in seen} == {"tally", "snapshot", "events"}
    assert method.dump([0]) == make_served().dump([0])


def test_unchanged_parts_are_not_written_again() -> None:
    method = make_served()
    packer, written = Packer(method), Written()
    for k in range(6):
        step(method, 0, k)
    (first,) = packer.pack([0], [written])
    assert {"tally", "snapshot/4", "snapshot/6"} <= first.parts.keys()
    assert packer.pack([0], [written])[0].parts == {}
    step(method, 0, 6)
    changed = packer.pack([0], [written])[0].parts
    assert set(changed) & set(first.parts) == {"tally"}
    method.method.forget([0])
    (fresh,) = packer.pack([0], [written])
    assert {name for name, part in fresh.parts.items() if part is None} == (first.parts | changed).keys() - {"tally"}


def test_labels_are_written_when_they_change() -> None:
    method = make_served()
    packer, written = Packer(method), Written()
    step(method, 0, 0)
    assert LABELS not in packer.pack([0], [written])[0].parts
    method.learn_labels([0, 2], [1, 1], [0, 0])
    (stored,) = packer.pack([0], [written])
    assert stored.parts[LABELS]
    step(method, 0, 0)
    (later,) = packer.pack([0], [written])
    assert LABELS not in later.parts
    packer.unpack(2, keep(stored, later))
    assert method.dump([2]) == method.dump([0])
    assert method.count_used() == [2, 0, 2]
    method.reset([0])
    assert packer.pack([0], [written])[0].parts[LABELS] is None


@pytest.mark.parametrize("spec", [name for name in lmr.list_methods() if not lmr.find_method(name).grows])
def test_content_is_the_file_of_the_method(spec: str) -> None:
    """Of every method that can be served: a safetensors file that the method itself loads."""
    rows = 3 if not lmr.find_method(spec).single_stream_reason else 1
    method = make_served(rows, spec, watch=None)
    step(method, rows - 1, 0)
    packer = Packer(method)
    states = packer.pack(list(range(rows)), [Written() for _ in range(rows)])
    assert states[0].watch == ""
    for row, state in enumerate(states):
        expected = method.state_dict([row])["tensors"]
        found = load(decompress(state.content))
        assert expected.keys() - found.keys() == {f"labels/{key}" for key in method.own.keys() - {*PER_STEP}}
        assert all(torch.equal(value, expected[key]) for key, value in found.items())
    other = make_served(1, spec, watch=None)
    other.restore(decompress(states[-1].content))
    assert torch.equal(other.state["predicted"][0], method.state["predicted"][-1])


@pytest.mark.parametrize("fault", ["watch", "part", "tally", "content", "labels"])
def test_damaged_state_is_refused_and_changes_nothing(fault: str) -> None:
    method = make_served()
    step(method, 0, 0)
    method.learn_labels([1], [0], [0])
    packer = Packer(method)
    (packed,) = packer.pack([0], [Written()])
    parts = dict(packed.parts)
    damaged = {
        "watch": dataclasses.replace(packed, watch="{}"),
        "part": dataclasses.replace(packed, parts={**parts, "tally": b"12345678" + parts["tally"][8:]}),  # type: ignore[index]
        "tally": dataclasses.replace(packed, parts={key: value for key, value in parts.items() if key != "tally"}),
        "labels": dataclasses.replace(packed, parts={**parts, LABELS: parts[LABELS][:-8]}),  # type: ignore[index]
        "content": dataclasses.replace(packed, content=packed.content[:-8]),
    }[fault]
    before = method.dump([1])
    with pytest.raises(LmrError):
        packer.unpack(1, damaged)
    assert method.dump([1]) == before
