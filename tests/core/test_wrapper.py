"""Wrappers: a small one, alone, in another and under a watch, does all that a method does."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
from lmr.core.state import Ranges
from lmr.core.wrapper import unwrap
from tiny_models import draw_batches, load_tiny

NAMES = ["red ring", "blue star", "green heart", "purple square"]
OTHERS = ["blue star", "orange cross", "red ring", "green heart", "purple square"]
IDS = [0, 1, 1, 0, 2, 1]


@dataclasses.dataclass(eq=False, repr=False)
class Shifted(lmr.Wrapper):
    """Add numbers to the logits of each stream, and count the images that got them."""

    prefix = "shifted"
    step_size: float = 0.5

    def begin(self) -> Mapping[str, Tensor | int]:
        return {"shift": torch.zeros(self.classifier.classes), "images": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return {"shift": (-1e4, 1e4), "images": (0, 2**53)}

    def step(self, images: Tensor, streams: Any = None) -> lmr.Prediction:
        with self.session():
            images, batch = self.check(images, streams)
            answer = super().step(images, batch)
            counted = self.own["images"][batch.active] + batch.sizes
            self.put({"images": counted}, batch.active)
            return answer

    def adjust(self, answer: lmr.Prediction, state: dict[str, Tensor], streams: lmr.Streams) -> Tensor:
        return answer.logits + streams.repeat(state["shift"])

    def describe(self, state: dict[str, Tensor]) -> Mapping[str, Tensor]:
        return {"shifted": state["shift"].abs().sum(1)}

    def adjust_parameters(self, parameters: Any, state: dict[str, Tensor]) -> Any:
        offset = state["shift"][0] if parameters.offset is None else parameters.offset + state["shift"][0]
        return dataclasses.replace(parameters, offset=offset)

    def shift(self, label: int, stream: int = 0) -> None:
        with self.session():
            rows = self.find_rows(stream)
            moved = self.own["shift"][rows].clone()
            moved[:, label] += self.step_size
            self.put({"shift": moved}, rows)


@dataclasses.dataclass(eq=False, repr=False)
class Doubled(lmr.Wrapper):
    """Multiply logits by two, with nothing to keep."""

    prefix = "doubled"

    def adjust(self, answer: lmr.Prediction, state: dict[str, Tensor], streams: lmr.Streams) -> Tensor:
        return 2 * answer.logits


@pytest.fixture(scope="module")
def backbone() -> lmr.Backbone:
    return load_tiny()


@pytest.fixture(scope="module")
def clip(backbone: lmr.Backbone) -> lmr.ZeroShot:
    return backbone.classifier(NAMES)


def make(clip: lmr.ZeroShot, streams: int = 3, spec: str = "lmr") -> Any:
    return lmr.Watched(Shifted(lmr.create(spec, clip, streams=streams), 2.0), lmr.WatchSettings(every=2))


def flow(method: Any, batches: list[Tensor]) -> list[Tensor]:
    return [method.step(batch, IDS[: len(batch)]).logits for batch in batches]


def test_watched_wrapper_adjusts_each_stream_and_says_so(clip: lmr.ZeroShot) -> None:
    (images,) = draw_batches([6])
    plain, method = lmr.create("lmr", clip, streams=3), make(clip)
    method.shift(2, stream=1)
    before, expected = method.predict(images, IDS).logits, plain.predict(images, IDS).logits
    answer, reference = method.step(images, IDS), plain.step(images, IDS)
    shift = torch.zeros(6, 4)
    shift[[1, 2, 5], 2] = 2
    assert torch.equal(answer.logits, reference.logits + shift)
    assert torch.equal(before, expected + shift)
    assert [answer.info["streams"][k]["shifted"] for k in range(3)] == [0, 2, 0]
    assert reference.info.keys() < answer.info.keys()
    assert answer.info["health"] == {0: "ok", 1: "ok", 2: "ok"}
    assert method.state["shifted/images"].tolist() == [2, 3, 1]


def test_state_is_resumed_bit_for_bit(clip: lmr.ZeroShot, tmp_path: Path) -> None:
    batches = draw_batches([6, 6, 6])
    method = make(clip)
    method.shift(3, stream=2)
    flow(method, batches[:1])
    method.save(tmp_path / "state")
    expected = flow(method, batches[1:])
    other = make(clip)
    other.load(tmp_path / "state")
    assert all(map(torch.equal, flow(other, batches[1:]), expected))
    kept, copied = method.state, copy.deepcopy(other.state)
    assert kept.keys() == copied.keys() >= {"shifted/shift", "norms", "watch/0/sums"}
    assert all(torch.equal(value, copied[key]) for key, value in kept.items())
    one = make(clip, streams=1)  # a single stream of three
    one.load_state_dict(method.state_dict(2))
    assert one.state["shifted/shift"].tolist() == [[0, 0, 0, 2]]


def test_state_that_does_not_fit_changes_nothing(clip: lmr.ZeroShot) -> None:
    method = make(clip)
    flow(method, draw_batches([6]))
    method.shift(1)
    state, before = method.state_dict(), copy.deepcopy(method.state)
    far = state["tensors"] | {"shifted/shift": torch.full((3, 4), 1e5)}
    odd = state["tensors"] | {"shifted/more": torch.zeros(3)}
    for tensors in (far, odd):
        with pytest.raises(lmr.LmrError, match="tensor"):
            method.load_state_dict({**state, "tensors": tensors})
    assert all(torch.equal(value, before[key]) for key, value in method.state.items())
    plain = lmr.create("lmr", clip, streams=3)
    with pytest.raises(lmr.LmrError, match=r"in a wrapper \(shifted, watch\)"):
        plain.load_state_dict(state)
    flow(plain, draw_batches([6]))
    method.load_state_dict(plain.state_dict())  # a state without the own tensors begins new ones
    assert not method.state["shifted/shift"].any()


def test_rollback_returns_the_state_of_the_wrapper_too(clip: lmr.ZeroShot) -> None:
    method = make(clip, streams=1)
    method.step(draw_batches([6])[0])
    start = method.state_dict()["tensors"]
    method.shift(1)
    method.reset()
    assert not method.state["shifted/shift"].any()
    assert not method.state["shifted/images"].any()
    method.load_state_dict(method.state_dict() | {"tensors": start})
    assert method.state["shifted/images"].tolist() == [6]


def test_own_tensors_follow_the_names_of_classes(backbone: lmr.Backbone, clip: lmr.ZeroShot) -> None:
    method, others = make(clip), backbone.classifier(OTHERS)
    flow(method, draw_batches([6]))
    for label in range(4):
        for _ in range(label):
            method.shift(label, stream=1)
    wider = method.with_classes(others)
    assert wider.state["shifted/shift"][1].tolist() == [2, 0, 0, 4, 6]
    assert wider.state["shifted/images"].tolist() == [2, 3, 1]
    adopted = make(others)
    adopted.load_state_dict(adopted.adopt(method.state_dict()))
    assert all(torch.equal(value, adopted.state[key]) for key, value in wider.state.items())
    images = draw_batches([6])[0]
    assert torch.equal(adopted.step(images, IDS).logits, wider.step(images, IDS).logits)


def test_wrapper_moves_with_the_classifier(backbone: lmr.Backbone) -> None:
    clip = load_tiny().classifier(NAMES)
    method = make(clip)
    method.shift(1)
    method.to(torch.float64)
    assert method.state["shifted/shift"].dtype == torch.float32  # as it begins
    assert method.state["norms"].dtype == torch.float64
    assert method.step(draw_batches([6])[0].double(), IDS).logits.dtype == torch.float64


def test_export_adds_what_the_wrapper_adds(clip: lmr.ZeroShot) -> None:
    method = make(clip, streams=1)
    images = draw_batches([6])[0]
    method.step(images)
    bias = method.export_parameters().offset.clone()
    method.shift(1)
    assert (method.export_parameters().offset - bias).tolist() == pytest.approx([0, 2, 0, 0])
    with pytest.raises(lmr.LmrError, match="'adjust_parameters'"):
        Doubled(lmr.create("lmr", clip)).export_parameters()


def test_wrappers_compose(clip: lmr.ZeroShot) -> None:
    images = draw_batches([6])[0]
    plain = lmr.create("lmr", clip)
    expected = plain.step(images).logits
    method = Doubled(Shifted(lmr.create("lmr", clip)))
    method.shift(0)
    answer = method.step(images)
    assert torch.equal(answer.logits, 2 * (expected + torch.tensor([0.5, 0, 0, 0])))
    assert method.spec == plain.spec
    assert isinstance(unwrap(method), type(plain))
    assert repr(method) == f"{plain!r}, shifted, doubled"


def test_wrappers_are_refused_where_they_cannot_be(clip: lmr.ZeroShot) -> None:
    method = Shifted(lmr.create("lmr", clip))
    with pytest.raises(lmr.LmrError, match="has it already"):
        Shifted(method)
    with pytest.raises(lmr.LmrError, match="Expected a method to wrap"):
        Shifted(clip)  # type: ignore[arg-type]
