"""The switches of LMR that do less: against the slow reference, in streams together and alone, and where they stop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import lmr
import lmr_reference as book
from lmr_problem import make_images, make_problem


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
