"""The share of samples past the gate is chosen by the data and holds exactly."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import lmr
from lmr.bench.cost.gate import lay_prototypes
from lmr.bench.cost.measured_model import Source, find_subject


@pytest.mark.parametrize("classes", [12, 1000])
@pytest.mark.parametrize("chosen", [0, 1, 5, 10])
def test_chosen_samples_pass_and_no_others(chosen: int, classes: int) -> None:
    subject = find_subject(Source(random="small"))
    images = subject.draw_images(10)
    with torch.no_grad():
        features = F.normalize(subject.encoder(images), dim=-1)
    mask = torch.arange(10) < chosen
    if chosen == 1:  # nothing but its noise tells one bright picture from the next
        with pytest.raises(lmr.LmrError, match="too much alike"):
            lay_prototypes(features, mask, classes, 100.0)
        return
    prototypes = lay_prototypes(features, mask, classes, 100.0)
    probabilities = (100 * features @ prototypes.T).softmax(1)
    certain = probabilities.amax(1)
    assert ((certain[mask] > 0.75) & (certain[mask] < 0.9)).all()
    torch.testing.assert_close(certain[~mask], torch.full((10 - chosen,), 1 / classes), rtol=1e-3, atol=0)
    answer = lmr.create("lmr", lmr.ZeroShot(subject.encoder, prototypes)).step(images)
    assert answer.info["gate_share"] == chosen / 10
    assert answer.info["stepped"] == (chosen > 0)


def test_a_chosen_sample_has_a_margin_with_a_gradient() -> None:
    features = F.normalize(torch.randn(6, 64), dim=-1)
    prototypes = lay_prototypes(features, torch.ones(6, dtype=torch.bool), 1000, 100.0)
    cosines = features @ prototypes.T
    ahead = cosines[:, :1] - cosines[:, 1:]
    assert (ahead > 0.03).all()  # all others outside the protected set
    torch.testing.assert_close(ahead[:, :5], torch.full((6, 5), 0.04), atol=1e-5, rtol=0)


def test_images_are_the_same_at_every_call_and_of_two_kinds() -> None:
    subject = find_subject(Source(random="small"))
    images = subject.draw_images(6)
    assert torch.equal(images, subject.draw_images(6))
    assert (images.mean((1, 2, 3)).sign() == torch.tensor([1, 1, 1, -1, -1, -1])).all()


@pytest.mark.parametrize(("images", "classes"), [(8, 12), (4, 11)])
def test_what_cannot_be_chosen_gets_a_sentence(images: int, classes: int) -> None:
    features = F.normalize(torch.randn(images, 8), dim=-1)
    with pytest.raises(lmr.LmrError, match="fewer images than the model has features"):
        lay_prototypes(features, torch.ones(images, dtype=torch.bool), classes, 100.0)
