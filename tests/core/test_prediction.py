"""A frozen answer is what predict computes, in plain torch; a method that has none says why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import lmr
from few_views import create
from lmr.core.card import Tower
from lmr.core.norms import NormBank
from lmr.core.prediction import AdaptedParameters
from pocket import CLASSES, load_pocket

NAMES = CLASSES[::9]
SPECS = ["lmr(pmr=False)", "lmr(bc=False)", "roid(prior_correction=False)", "cmf(prior_correction=False)"]
REASONS = {name: lmr.find_method(name).export_reason for name in lmr.list_methods()}
FROZEN = [*SPECS, *(name for name in REASONS if REASONS[name] == lmr.Method.export_reason)]
REFUSING = sorted(set(REASONS) - {spec.partition("(")[0] for spec in FROZEN})


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    clip = load_pocket().classifier(NAMES)
    clip.logit_bias = 0.75  # as SigLIP has one
    return clip


def make_images(seed: int) -> Tensor:
    return torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def compute_logits(frozen: AdaptedParameters, clip: lmr.ZeroShot, images: Tensor) -> Tensor:
    """The classifier that the frozen answer describes, without a method and without a NormBank."""
    with torch.no_grad():
        features = functional_call(clip.encoder, dict(frozen.norms.get(Tower.IMAGE, {})), (images,))
        logits = clip.logit_scale * F.normalize(features, dim=-1) @ frozen.prototypes.T + clip.logit_bias
    return logits if frozen.offset is None else logits + frozen.offset


@pytest.mark.parametrize("spec", FROZEN)
def test_frozen_answer_is_the_prediction(spec: str, clip: lmr.ZeroShot) -> None:
    method = create(spec, clip)
    for seed in range(3):
        method.step(make_images(seed))
    frozen, images = method.export_parameters(), make_images(99)
    before = method.predict(images).logits
    torch.testing.assert_close(compute_logits(frozen, clip, images), before, atol=1e-4, rtol=0)
    if frozen.from_prompts and clip.text is not None:
        with torch.no_grad():
            tower = clip.text.tower
            own = {key: value.clone() for key, value in tower.state_dict().items()}
            tower.load_state_dict(own | dict(frozen.norms.get(Tower.TEXT, {})))
            again = clip.text.all_prototypes(4)
            tower.load_state_dict(own)
        torch.testing.assert_close(again, frozen.prototypes, atol=1e-6, rtol=0)
    method.step(make_images(5))  # the frozen answer is a copy
    torch.testing.assert_close(compute_logits(frozen, clip, images), before, atol=1e-4, rtol=0)
    own = clip.prototypes.clone()
    frozen.prototypes.zero_()
    assert torch.equal(clip.prototypes, own)


@pytest.mark.parametrize("spec", ["lmr", "mint", "tent", "eta"])
def test_each_stream_has_its_own(spec: str, clip: lmr.ZeroShot) -> None:
    method = lmr.create(spec, clip, streams=3)
    images, ids = make_images(0), torch.tensor([0, 0, 2, 2, 2, 2, 0, 0])
    method.step(images, ids)
    for stream in range(3):
        expected = method.predict(images, torch.full((8,), stream)).logits
        torch.testing.assert_close(
            compute_logits(method.export_parameters(stream), clip, images), expected, atol=1e-4, rtol=0
        )
    with pytest.raises(lmr.LmrError, match="stream ids from 0 to 2"):
        method.export_parameters(3)


@pytest.mark.parametrize("name", REFUSING)
def test_a_method_that_cannot_be_frozen_says_why(name: str, clip: lmr.ZeroShot) -> None:
    method = create(name, clip)
    with pytest.raises(lmr.LmrError, match=f"{name} cannot be exported: {method.export_reason}"):
        method.export_parameters()


def test_parameters_have_the_names_of_the_state_dict() -> None:
    tower = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, bias=False), nn.LayerNorm([2, 3]))
    bank = NormBank(tower)
    named = bank.name_parameters(torch.arange(18.0))
    assert {key: list(value.shape) for key, value in named.items()} == {
        "1.weight": [6],
        "2.weight": [2, 3],
        "2.bias": [2, 3],
    }
    assert named["2.bias"].flatten().tolist() == list(map(float, range(12, 18)))
    assert set(NormBank(nn.LayerNorm(3)).name_parameters(torch.zeros(6))) == {"weight", "bias"}
