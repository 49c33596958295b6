"""The switches of LMR that do less: against the slow reference, in streams together and alone, and where they stop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
import lmr_reference as book
from lmr_problem import copy_state, make_images, make_problem


@pytest.mark.parametrize("share", [0.01, 0.25, 0.6])
@pytest.mark.parametrize("rest", [{}, {"emit": "before"}, {"am": False, "positives": "top1"}, {"tau": 0.6}])
def test_share_follows_the_reference(share: float, rest: dict[str, Any]) -> None:
    tower, prototypes, anchors = make_problem()
    method = lmr.create("lmr_variants(preset='default')", lmr.ZeroShot(tower, prototypes, 100.0), share=share, **rest)
    reference = book.Reference(book.write_out(tower), tower.norms, prototypes, share=share, **rest)
    stepped = []
    for images in make_images(anchors, 75).split(8):
        answer, expected = method.step(images), reference.step(images)
        assert (answer.logits - expected).abs().max() < 1e-9
        samples = reference.history[-1]["samples"]
        assert len(samples) == math.ceil(share * len(images))
        assert answer.info["gate_share"] == pytest.approx(sum(s.weight > 0 for s in samples) / len(samples), abs=1e-6)
        assert answer.info["loss"] == pytest.approx(reference.history[-1]["loss"], abs=1e-9)
        assert answer.info["stepped"] is reference.history[-1]["stepped"]
        stepped.append(answer.info["stepped"])
    assert any(stepped)
    if "tau" in rest and share < 0.1:
        assert not all(stepped)  # a batch without a confident teacher is answered by the tower as it was
    expected = {"norms": reference.flat, "mass": reference.mass, "bias": reference.bias, "running": reference.running}
    for key, value in expected.items():
        assert (method.state[key][0] - torch.as_tensor(value, dtype=torch.float64)).abs().max() < 1e-9, key


def test_defaults_are_the_published_method() -> None:
    """To the last bit."""
    tower, prototypes, anchors = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    plain, whole = lmr.create("lmr", clip), lmr.create("lmr_variants", clip)
    for images in make_images(anchors, 30).split(10):
        assert torch.equal(plain.step(images).logits, whole.step(images).logits)


class Faulty(nn.Module):
    """A tower that gives NaN for images whose first number is 99."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, images: Tensor) -> Tensor:
        return torch.where(images[:, :1, 0] == 99.0, torch.nan, self.tower(images))


@pytest.mark.parametrize("emit", ["after", "before"])
@pytest.mark.parametrize("bad", [0, 9])  # with half of ten, images 1, 3, 5, 7 and 9 teach
def test_an_image_without_a_finite_answer_changes_nothing(bad: int, emit: str) -> None:
    """Also where it does not teach: its answer would enter the bias correction."""
    tower, prototypes, anchors = make_problem()
    spec = "lmr_variants(preset='default', share=0.5, tau=0.1)"
    method = lmr.create(spec, lmr.ZeroShot(Faulty(tower), prototypes, 100.0), emit=emit)
    good = make_images(anchors, 10)
    method.step(good)
    before, images = copy_state(method), make_images(anchors, 10, seed=1)
    images[bad, 0, 0] = 99.0
    answer = method.step(images)
    assert answer.info["finite"] is False
    assert answer.info["stepped"] is False
    assert answer.logits.isfinite().all(1).tolist() == [k != bad for k in range(10)]
    for key in set(before) - {"predicted"}:
        assert torch.equal(method.state[key], before[key]), key


def test_a_step_into_the_void_is_taken_back_for_all_images() -> None:
    """Images that do not teach have no answer from before the step; they are asked with the norms as they were."""
    tower, prototypes, anchors = make_problem()
    method = lmr.create("lmr_variants(lr=1e300, share=0.3, tau=0.1)", lmr.ZeroShot(tower, prototypes, 100.0))
    images = make_images(anchors, 10)
    before, expected = copy_state(method), method.predict(images).logits
    answer = method.step(images)
    assert torch.allclose(answer.logits, expected, rtol=0, atol=1e-12)
    assert answer.info["finite"] is False
    for key in set(before) - {"predicted"}:
        assert torch.equal(method.state[key], before[key]), key
