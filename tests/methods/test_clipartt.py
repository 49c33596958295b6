"""CLIPArTT against loops over pairs of images and captions and torch's own Adam, in float64."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain

SCALE = 12.0  # so that no image is matched beyond doubt, which would leave a gradient of rounding errors


class Reference(plain.NormReference):
    """Every batch from the start, ten steps of Adam on captions that are written anew before each."""

    def __init__(self, lr: float = 1e-3, top: int = 3, steps: int = 10, captions: str = "text") -> None:
        super().__init__(SCALE)
        self.lr, self.top, self.steps, self.captions = lr, top, steps, captions
        if captions == "text":  # prompts of its own, which choose and answer; the classifier's are others
            plain_prompts = plain.read_words(["a photo of a " + name for name in plain.NAMES])
            self.prototypes = plain_prompts / plain_prompts.norm(dim=1, keepdim=True)

    def write(self, features: Tensor) -> Tensor:
        rows = []
        for z in features.detach():
            near = [float(z @ t) for t in self.prototypes]
            best = sorted(range(len(near)), key=lambda c: -near[c])[: self.top]
            if self.captions == "mean":
                row = sum(self.prototypes[c] for c in best) / len(best)
            else:
                row = plain.read_words(["a photo of a " + " or ".join(plain.NAMES[c] for c in best)])[0]
            rows.append(row / row.norm())
        return torch.stack(rows)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        self.set_leaves(self.start)
        optimizer = torch.optim.Adam(self.leaves, lr=self.lr)
        for _ in range(self.steps):
            features = self.features(images)
            loss = plain.match_loss(features, self.write(features), SCALE)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return self.score(images).detach(), {"loss": loss.item(), "drift": self.drift, "stepped": True}


@pytest.mark.parametrize(
    "spec", [{}, {"lr": 5e-3, "top": 2, "steps": 3}, {"top": 20, "steps": 2}, {"captions": "mean", "steps": 4}], ids=str
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    _, _, images = plain.make_problem()
    method = plain.make_method("clipartt", SCALE, names=plain.NAMES, reader=plain.make_reader())
    method, reference = lmr.create("clipartt", method.classifier, **spec), Reference(**spec)
    for batch in images[:20].split(6):
        expected, event = reference.step(batch)
        looked = method.predict(batch).logits
        answer = method.step(batch)
        assert torch.equal(looked, answer.logits)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        assert event["drift"] > 1e-4
    assert set(method.state) == {"predicted"}


def test_model_that_cannot_read_captions_takes_means_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    clip = plain.make_method("zeroshot").classifier
    with caplog.at_level(logging.WARNING, "lmr"):
        method = lmr.create("clipartt(steps=2)", clip)
    assert "means of prototypes in place of captions" in caplog.text
    _, _, images = plain.make_problem()
    explicit = lmr.create("clipartt(steps=2, captions='mean')", clip)
    assert torch.equal(method.step(images[:6]).logits, explicit.step(images[:6]).logits)
    with pytest.raises(lmr.LmrError, match="no text encoder"):
        lmr.create("clipartt(captions='text')", clip)
