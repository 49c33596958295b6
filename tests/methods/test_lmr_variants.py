"""The switches of LMR that do less: against the slow reference, in streams together and alone, and where they stop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
import lmr_reference as book
from lmr.core.passes import Passes, count_samples
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


@pytest.mark.parametrize(
    "spec", ["lmr_variants(share=0.4)", 'lmr_variants(share=0.4, emit="before")', "lmr_variants(share=0.2, tau=0.5)"]
)
def test_streams_together_are_streams_alone(spec: str) -> None:
    """Whatever the order in which a batch mixes them, each stream's own images decide which of them teach."""
    tower, prototypes, anchors = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    together, alone = lmr.create(spec, clip, streams=4), [lmr.create(spec, clip) for _ in range(4)]
    torch.manual_seed(0)
    for batch in make_images(anchors, 150).split(15):
        ids = torch.randint(4, (len(batch),))
        logits = together.step(batch, streams=ids).logits
        for s, other in enumerate(alone):
            if (ids == s).any():
                assert (logits[ids == s] - other.step(batch[ids == s]).logits).abs().max() < 1e-9
    for key, value in together.state.items():
        assert (value - torch.cat([other.state[key] for other in alone])).abs().max() < 1e-9, key
    assert together.state["steps"].max() >= 2


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


@pytest.mark.parametrize(
    ("spec", "passes"),
    [
        ("lmr", Passes(2, 1)),
        ("lmr_variants(share=0.25)", Passes(1.25, 0.25)),
        ('lmr_variants(share=0.25, emit="before")', Passes(1, 0.25)),
        ("lmr_variants(pmr=False, share=0.25)", Passes(1, 0)),
    ],
)
def test_passes(spec: str, passes: Passes) -> None:
    tower, prototypes, _ = make_problem()
    assert lmr.count_passes(lmr.create(spec, lmr.ZeroShot(tower, prototypes))) == passes


@pytest.mark.parametrize(
    "spec", ["lmr_variants(share=0.25)", "lmr_variants(share=0.4, emit='before')", "lmr_variants(share=0.3)", "lmr"]
)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_passes_on_the_stand_in_are_those_on_the_model(spec: str, size: int) -> None:
    """Against the images that go through the tower, and those whose features receive a gradient."""
    tower, prototypes, anchors = make_problem()
    method = lmr.create(spec, lmr.ZeroShot(tower, prototypes, 100.0), tau=0.0)
    with count_samples(tower) as counts:
        assert method.step(make_images(anchors, size)).info["stepped"]
    counted = lmr.count_passes(method, size)
    assert counted is not None
    assert (counts["forwards"] / size, counts["backwards"] / size) == pytest.approx(
        (counted.forwards, counted.backwards)
    )


@pytest.mark.parametrize("spec", ["lmr_variants(share=0)", "lmr_variants(share=1.5)"])
def test_refused_values(spec: str) -> None:
    tower, prototypes, _ = make_problem()
    with pytest.raises(lmr.LmrError, match="share"):
        lmr.create(spec, lmr.ZeroShot(tower, prototypes))
