"""CMF: ROID's reference with the filter written out, whole streams in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lmr
import norm_reference as plain
from weighted_reference import SCALE, change
from weighted_reference import Reference as Roid


class Reference(Roid):
    """One stream of CMF."""

    def __init__(self, alpha: float = 0.99, gamma: float = 0.99, q: float = 0.005, **given: Any) -> None:
        super().__init__(**given)
        self.alpha, self.gamma = alpha, gamma
        self.added = q * sum(leaf.numel() for leaf in self.leaves) / 38400
        self.hidden, self.variance, self.weights = [leaf.clone() for leaf in self.start], 0.0, set[float]()

    def merge(self) -> None:
        alpha, added = self.alpha, self.added
        hidden = [alpha * h + (1 - alpha) * start for h, start in zip(self.hidden, self.start, strict=True)]
        variance = alpha * alpha * self.variance + added
        beta = (1 - added) / (variance + 1 - added)
        if beta < 0.89:
            beta = 0.89
        if beta >= 0.9999:
            beta = 1.0
        self.weights.add(beta)
        self.variance = beta * variance
        present = [leaf.detach().clone() for leaf in self.leaves]
        self.hidden = [beta * h + (1 - beta) * leaf for h, leaf in zip(hidden, present, strict=True)]
        mixed = zip(present, self.hidden, strict=True)
        self.set_leaves([self.gamma * leaf + (1 - self.gamma) * h for leaf, h in mixed])


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"q": 100.0, "alpha": 0.9, "gamma": 0.8, "lr": 0.005},
        {"q": 5.0, "prior_correction": False, "optimizer": "sgd", "lr": 2e-3},
        {"q": 2.0, "consistency": False, "batch": 30, "lr": 0.01},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    _, _, images = plain.make_problem()
    method: Any = lmr.create("cmf", plain.make_method("zeroshot", SCALE).classifier, preset="default", **spec)
    method.jitter = change
    reference = Reference(**{"batch": 12} | spec)
    for part in images[:55].split([12, 12, 12, 12, 1, 6]):
        expected, event = reference.step(part)
        answer = method.step(part)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        plain.compare_norms(method, reference)
        torch.testing.assert_close(method.state["hidden"][0], torch.cat(reference.hidden), atol=1e-9, rtol=0)
        assert method.state["variance"].item() == pytest.approx(reference.variance, abs=1e-12)
    if spec.get("q") == 5.0:
        assert all(0.89 < beta < 0.9999 for beta in reference.weights)
    assert (min(reference.weights) == 0.89) == (spec.get("q") == 100.0)
    assert (max(reference.weights) == 1.0) == ("q" not in spec)
    method.reset()
    assert method.state["variance"].item() == 0


def test_prior_correction_is_off_in_auto() -> None:
    clip = plain.make_method("zeroshot", SCALE).classifier
    assert "prior_correction=True" in lmr.create("cmf", clip, preset="default").spec
    assert "prior_correction=False" in lmr.create("cmf", clip).spec
