"""States as bytes: they come back bit for bit, and what did not change is not written again."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load

import lmr
from engine_maker import CALM, make_images, make_method
from lmr.core.errors import LmrError
from lmr.service.engine.packing import Packer, WaitingImage, Written, compress, decompress, describe_identity
from lmr.service.store.stored_types import StoredState


def make_watched(rows: int = 3) -> lmr.Watched:
    method = make_method(rows=rows)
    assert isinstance(method, lmr.Watched)
    return method


def step(method: lmr.Method, row: int, k: int) -> None:
    images = make_images("a", k)
    method.step(images, [row] * len(images))


def keep(kept: StoredState | None, new: StoredState) -> StoredState:
    """What a store has after ``new`` was written over ``kept``."""
    parts = {} if kept is None else dict(kept.parts)
    parts |= new.parts
    return dataclasses.replace(new, parts={name: part for name, part in parts.items() if part is not None})


def test_state_is_packed_step_by_step_and_comes_back() -> None:
    method = make_watched()
    packer, written = Packer(method), Written()
    stored: StoredState | None = None
    seen: set[str] = set()
    for k in range(12):
        step(method, 1, k)
        if k == 7:
            method.rollback(1)
        (packed,) = packer.pack([1], [[]], [written])
        seen |= packed.parts.keys()
        stored = keep(stored, packed)
        _, again = packer.unpack(2, stored)
        assert method.dump([2]) == method.dump([1])
        assert again.keys() == written.keys() == stored.parts.keys()
    assert {name.partition("/")[0] for name in seen} == {"tally", "canary", "snapshot", "undo", "events"}
    assert method.dump([0]) == make_watched().dump([0])


def test_unchanged_parts_are_not_written_again() -> None:
    method = make_watched()
    packer, written = Packer(method), Written()
    for k in range(6):
        step(method, 0, k)
    (first,) = packer.pack([0], [[]], [written])
    assert {"tally", "snapshot/4", "snapshot/6", "canary/0", "canary/1"} <= first.parts.keys()
    assert packer.pack([0], [[]], [written])[0].parts == {}
    step(method, 0, 6)
    changed = packer.pack([0], [[]], [written])[0].parts
    assert set(changed) & set(first.parts) == {"tally"}
    method.forget([0])
    (fresh,) = packer.pack([0], [[]], [written])
    assert {name for name, part in fresh.parts.items() if part is None} == (first.parts | changed).keys() - {"tally"}


def test_canaries_are_written_one_by_one() -> None:
    method = make_watched()
    packer, written = Packer(method), Written()
    names: list[str] = []
    for k in range(8):
        step(method, 0, k)
        names += [name for name in packer.pack([0], [[]], [written])[0].parts if name.startswith("canary/")]
    assert len(names) == len(set(names)) >= 2


def test_images_that_wait_are_parts() -> None:
    method = make_watched()
    packer, written = Packer(method), Written()
    waiting = [WaitingImage(image, 3, place) for place, image in enumerate(make_images("a", 0, 2))]
    (packed,) = packer.pack([0], [waiting], [written])
    images, _ = packer.unpack(1, packed)
    assert [(one.seq, one.place) for one in images] == [(3, 0), (3, 1)]
    assert all(torch.equal(one.image, other.image) for one, other in zip(images, waiting, strict=True))
    assert packer.pack([0], [waiting], [written])[0].parts == {}
    assert packer.pack([0], [[]], [written])[0].parts == {"waiting/0": None, "waiting/1": None}


@pytest.mark.parametrize("spec", [name for name in lmr.list_methods() if not lmr.find_method(name).grows])
def test_content_is_the_file_of_the_method(spec: str) -> None:
    """Of every method that can be served: a safetensors file that the method itself loads."""
    rows = 3 if not lmr.find_method(spec).single_stream_reason else 1
    method = make_method(spec, rows, watch=None)
    step(method, rows - 1, 0)
    packer = Packer(method)
    states = packer.pack(list(range(rows)), [[]] * rows, [Written() for _ in range(rows)])
    assert states[0].watch == ""
    for row, state in enumerate(states):
        expected = method.state_dict([row])["tensors"]
        found = load(decompress(state.content))
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, expected[key]) for key, value in found.items())
    other = make_method(spec, 1, watch=None)
    other.restore(decompress(states[-1].content))
    assert torch.equal(other.state["predicted"][0], method.state["predicted"][-1])


def test_zeros_are_not_stored() -> None:
    numbers = torch.randn(4000).numpy().tobytes()
    assert compress(numbers) == numbers  # not worth it
    sparse = bytes(16_000) + numbers[:8000]
    assert len(compress(sparse)) < 9000
    assert decompress(compress(sparse)) == sparse
    with pytest.raises(LmrError, match="cannot be decompressed"):
        decompress(compress(sparse)[:-8])


@pytest.mark.parametrize("fault", ["watch", "part", "tally", "content"])
def test_damaged_state_is_refused_and_changes_nothing(fault: str) -> None:
    method = make_watched()
    step(method, 0, 0)
    packer = Packer(method)
    (packed,) = packer.pack([0], [[]], [Written()])
    parts = dict(packed.parts)
    damaged = {
        "watch": dataclasses.replace(packed, watch="{}"),
        "part": dataclasses.replace(packed, parts={**parts, "tally": b"12345678" + parts["tally"][8:]}),  # type: ignore[index]
        "tally": dataclasses.replace(packed, parts={key: value for key, value in parts.items() if key != "tally"}),
        "content": dataclasses.replace(packed, content=packed.content[:-8]),
    }[fault]
    before = method.dump([1])
    with pytest.raises(LmrError):
        packer.unpack(1, damaged)
    assert method.dump([1]) == before


def test_identity_names_model_classes_and_method() -> None:
    one, other = describe_identity(make_method("lmr")), describe_identity(make_method("tent"))
    assert {key for key in one if one[key] != other[key]} == {"method"}
    assert CALM.every == 3  # the watch is no part of it: its settings may change
