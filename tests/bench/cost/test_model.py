"""The share of samples past the gate is chosen by the data and holds exactly."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import lmr
from lmr.bench.cost.model import NOT_CHOSEN, ModelSource, assign_colours, build_prototypes, find_measured_model
from lmr.core.errors import LmrError
from lmr.models.clip import Clip
from lmr.models.facts import ModelFacts
from lmr.models.formats.checkpoints import TowerWeights
from lmr.models.formats.configs import openai_preprocessing


@pytest.mark.parametrize("classes", [12, 1000])
@pytest.mark.parametrize("chosen", [0, 1, 5, 10])
def test_chosen_samples_pass_and_no_others(chosen: int, classes: int) -> None:
    model = find_measured_model(ModelSource(random="small"))
    images = model.draw_images(10)
    with torch.no_grad():
        features = F.normalize(model.encoder(images), dim=-1)
    mask = torch.arange(10) < chosen
    colours = assign_colours(10)
    assert colours.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    target = torch.where(mask, colours, NOT_CHOSEN)
    if chosen == 1:  # nothing but its noise distinguishes one image from the next of its colour
        with pytest.raises(lmr.LmrError, match="too similar"):
            build_prototypes(features, target, classes, 100.0)
        return
    prototypes = build_prototypes(features, target, classes, 100.0)
    probabilities = (100 * features @ prototypes.T).softmax(1)
    certain, label = probabilities.max(1)
    assert torch.equal(label[mask], target[mask])
    assert len(label[mask].unique()) == {0: 0, 5: 2, 10: 4}[chosen]
    assert ((certain[mask] > 0.75) & (certain[mask] < 0.9)).all()
    torch.testing.assert_close(certain[~mask], torch.full((10 - chosen,), 1 / classes), rtol=1e-3, atol=0)
    answer = lmr.create("lmr", lmr.ZeroShot(model.encoder, prototypes)).step(images)
    assert answer.info["gate_share"] == chosen / 10
    assert answer.info["stepped"] == (chosen > 0)


def test_a_chosen_sample_has_a_margin_with_a_gradient() -> None:
    features = F.normalize(torch.randn(6, 64), dim=-1)
    target = torch.tensor([0, 0, 1, 1, 2, 2])
    prototypes = build_prototypes(features, target, 1000, 100.0)
    cosines = features @ prototypes.T
    own = cosines.gather(1, target.unsqueeze(1))
    ahead = own - cosines
    assert (ahead.scatter(1, target.unsqueeze(1), 1.0) > 0.03).all()  # all others outside the protected set
    torch.testing.assert_close(ahead[:, 3:8], torch.full((6, 5), 0.04), atol=1e-5, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_images_are_the_same_at_every_call_and_the_halves_share_no_colour(count: int) -> None:
    model = find_measured_model(ModelSource(random="small"))
    images = model.draw_images(count)
    assert torch.equal(images, model.draw_images(count))
    colours = images.mean((2, 3)).sign()
    assert len(colours.unique(dim=0)) == min(count, 4)
    first, second = ({tuple(row) for row in part.tolist()} for part in (colours[: count // 2], colours[count // 2 :]))
    assert not first & second


@pytest.mark.parametrize(("images", "classes"), [(8, 12), (4, 11)])
def test_what_cannot_be_chosen_is_refused(images: int, classes: int) -> None:
    features = F.normalize(torch.randn(images, 8), dim=-1)
    with pytest.raises(lmr.LmrError, match="fewer images than the model has features"):
        build_prototypes(features, torch.zeros(images, dtype=torch.int64), classes, 100.0)


def test_a_source_is_a_model_or_an_architecture() -> None:
    for given in ({}, {"model": "pocket", "random": "small"}):
        with pytest.raises(LmrError, match="Give either a model or the architecture"):
            ModelSource(**given)


def test_model_without_a_tokenizer_is_measured_without_its_text_side(monkeypatch: pytest.MonkeyPatch) -> None:
    small = find_measured_model(ModelSource(random="small"))
    assert small.tower is not None
    assert small.text is not None
    sizes = (small.tower.config, small.text.config)
    weights = TowerWeights(small.tower.state_dict(), small.text.state_dict(), logit_scale=100.0, logit_bias=0.0)
    own = Clip("own", sizes, weights, openai_preprocessing(32), ModelFacts())
    monkeypatch.setattr("lmr.bench.cost.model.load", lambda model: own)
    subject = find_measured_model(ModelSource(model="own"))
    assert subject.encoder is own.encoder
    assert subject.write_prompts(3) is None
