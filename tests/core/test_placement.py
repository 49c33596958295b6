"""``to``: towers, prototypes and states move together, whoever is asked; precision is lost only where it must be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
from few_views import create
from lmr.core.placement import place_tower
from pocket import load_pocket

NAMES = ["red star", "blue ring", "green square"]
pytestmark = pytest.mark.usefixtures("tiny_models")
SPECS = [(name, 1 if lmr.find_method(name).single_stream_reason else 3) for name in lmr.list_methods()]
SPECS += [("lmr", 1), ("tda", 1), ("tpt", 1), ("watt", 1)]  # norms, a memory, prompts, nothing that stays


@pytest.fixture
def backbone() -> lmr.Backbone:
    return load_pocket()


@pytest.fixture
def images() -> Tensor:
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def list_norms(*towers: nn.Module) -> list[nn.LayerNorm]:
    return [module for tower in towers for module in tower.modules() if isinstance(module, nn.LayerNorm)]


@pytest.mark.parametrize("who", ["backbone", "classifier", "other classifier", "method", "module"])
def test_all_that_share_a_tower_follow(who: str, backbone: lmr.Backbone, images: Tensor) -> None:
    one, other = backbone.classifier(NAMES), backbone.classifier(NAMES)
    method = lmr.create("tent(lr=0.01)", one)
    method.step(images)
    before = method.state["norms"].clone()
    movers: dict[str, Any] = {"backbone": backbone, "classifier": one, "other classifier": other, "method": method}
    mover = movers.get(who, backbone.encoder)
    assert mover.to(torch.float64) is mover
    assert backbone.dtype == one.dtype == other.dtype == one.prototypes.dtype == other.prototypes.dtype == torch.float64
    answer = method.step(images.double())
    assert answer.logits.dtype == method.state["norms"].dtype == method.state["first"].dtype == torch.float64
    assert not torch.equal(method.state["norms"].float(), before)
    mover.to(torch.float32)
    assert one.prototypes.dtype == method.predict(images).logits.dtype == torch.float32


@pytest.mark.parametrize(("spec", "streams"), SPECS)
def test_stream_goes_on_after_a_move(spec: str, streams: int, images: Tensor, request: pytest.FixtureRequest) -> None:
    """In float64 and back, every method gives what it gives without the journey, up to the rounding of its steps."""
    if lmr.find_method(spec).trained == "context words" or spec == "tps":
        request.getfixturevalue("real_models")  # whose answers move less when rounding decides the sign of a step
    clip = load_pocket().classifier(NAMES)
    stays = create(spec, copy.deepcopy(clip), streams=streams)
    goes = create(spec, clip, streams=streams)
    ids = None if streams == 1 else [0, 1, 2, 0, 1, 2]
    for k in range(3):
        given = images.roll(k, 2)
        expected = stays.step(given, streams=ids).logits
        goes.to(torch.float64 if k == 1 else torch.float32)
        if (
            goes.memory_span == "batch"
        ):  # nothing stays, and steps from fresh moments enlarge rounding: a new one in this type
            expected = create(spec, clip, streams=streams).step(given.to(clip.dtype), streams=ids).logits.float()
        found = goes.step(given.to(clip.dtype), streams=ids).logits
        near = 2e-2 if goes.trained == "context words" else 2e-3  # where rounding decides the sign of a step
        near = 5e-2 if goes.name == "tps" else near  # also there, for every number of the prototypes
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=near)
    assert {key: value.dtype for key, value in goes.state.items()} == {
        key: value.dtype for key, value in stays.state.items()
    }
    fresh = create(spec, clip, streams=streams)
    fresh.load_state_dict(goes.state_dict())  # in float64 all digits are kept, so it is the same model
    goes.reset()
    start = create(spec, clip, streams=streams).state
    assert all(torch.equal(goes.state[key], value) for key, value in start.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_norms_prototypes_and_states(
    dtype: torch.dtype, backbone: lmr.Backbone, images: Tensor
) -> None:
    clip = backbone.classifier(NAMES)
    method = lmr.create("tent(lr=0.01)", clip)
    full = method.step(images).logits
    kept = copy.deepcopy(method.state)
    norms = [norm.weight.clone() for norm in list_norms(clip.encoder)]
    method.to(dtype)
    assert clip.dtype == backbone.dtype == dtype
    assert backbone.preprocess(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)).dtype == dtype
    assert clip.prototypes.dtype == torch.float32
    assert all(torch.equal(norm.weight, old) for norm, old in zip(list_norms(clip.encoder), norms, strict=True))
    assert all(torch.equal(method.state[key], value) for key, value in kept.items())
    half = lmr.create("tent(lr=0.01)", clip).step(images.to(dtype)).logits
    torch.testing.assert_close(half.float(), full, rtol=0, atol=2)  # of logits with a spread of 17
    assert not torch.equal(half, full)
    with pytest.raises(lmr.LmrError, match=r"Expected torch.* images"):
        method.step(images)


def test_moving_equals_loading(images: Tensor) -> None:
    """A model in bfloat16 is the same whether it was loaded so or moved there."""
    moved, loaded = lmr.load().to("cpu", torch.bfloat16), lmr.load(dtype=torch.bfloat16)
    one, other = moved.encoder.state_dict(), loaded.encoder.state_dict()
    assert all(torch.equal(one[key], other[key]) and one[key].dtype == other[key].dtype for key in one)
    names = ["cat", "dog"]
    assert moved.classifier(names).fingerprint == loaded.classifier(names).fingerprint


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_fit_a_model_in_full_and_in_half_precision(
    dtype: torch.dtype, backbone: lmr.Backbone, images: Tensor, tmp_path: Path
) -> None:
    """Until the model is widened again: its digits are lost then."""
    clip = backbone.classifier(NAMES)
    method = lmr.create("tent", clip)
    method.step(images)
    method.save(tmp_path / "full")
    place_tower(clip.encoder, dtype=dtype)
    method.load(tmp_path / "full")
    method.step(images.to(dtype))
    method.save(tmp_path / "half")
    other = lmr.create("tent", load_pocket().classifier(NAMES))
    other.load(tmp_path / "half")
    assert all(torch.equal(other.state[key], value) for key, value in method.state.items())
    other.step(images)
    place_tower(clip.encoder, dtype=torch.float32)
    with pytest.raises(lmr.LmrError, match="other weights"):
        method.load(tmp_path / "full")
    place_tower(clip.encoder, dtype=dtype)
    method.load(tmp_path / "full")  # rounding twice changes nothing more


def test_state_of_a_model_in_half_precision_with_other_weights_is_refused(
    backbone: lmr.Backbone, images: Tensor
) -> None:
    clip = backbone.classifier(NAMES)
    state = lmr.create("tent", clip).state_dict()
    place_tower(clip.encoder, dtype=torch.bfloat16)
    clip.encoder.blocks[0].out.weight.data[0, 0] += 1
    with pytest.raises(lmr.LmrError, match="other weights"):
        lmr.create("tent", backbone.classifier(NAMES)).load_state_dict(state)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("meta",), "'meta' cannot be used here"),
        ((torch.int8,), "Expected one of torch.float32"),
        ((torch.float32, torch.float64), "Expected a device and a type"),
    ],
    ids=str,
)
def test_what_is_no_place_changes_nothing(
    given: tuple[Any, ...], words: str, backbone: lmr.Backbone, images: Tensor
) -> None:
    clip = backbone.classifier(NAMES)
    method = lmr.create("tent", clip)
    before = clip.fingerprint
    for mover in (backbone, clip, method):
        with pytest.raises(lmr.LmrError, match=words):
            mover.to(*given)  # type: ignore[attr-defined]
    assert clip.fingerprint == before
    method.to("cpu").to(torch.device("cpu")).to().step(images)
