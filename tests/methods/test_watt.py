"""WATT, sequential and parallel, against loops over templates, pairs of images and torch's own Adam, in float64."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain

SCALE = 12.0  # so that no image is matched beyond doubt, which would leave a gradient of rounding errors
TEMPLATES = [
    "a photo of a {}", "itap of a {}", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}.",
    "a {} in a video game.", "art of the {}.", "a photo of the small {}.",
]  # fmt: skip


class Reference(plain.NormReference):
    """Every batch from the start."""

    def __init__(self, lr: float = 1e-3, mode: str = "s", inner: int = 2, rounds: int = 5) -> None:
        super().__init__(SCALE)
        self.lr, self.mode, self.inner, self.rounds = lr, mode, inner, rounds
        self.prompts = []
        for template in TEMPLATES:
            raw = plain.read_words([template.replace("{}", name) for name in plain.NAMES])
            self.prompts.append(raw / raw.norm(dim=1, keepdim=True))

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        self.set_leaves(self.start)
        optimizer = torch.optim.Adam(self.leaves, lr=self.lr)
        for number in range(self.rounds):
            begun = [leaf.detach().clone() for leaf in self.leaves]
            sums = [torch.zeros_like(leaf) for leaf in begun]
            for prompts in self.prompts:
                if self.mode == "p":
                    self.set_leaves(begun)
                    if number == 0:
                        optimizer = torch.optim.Adam(self.leaves, lr=self.lr)
                for _ in range(self.inner):
                    features = self.features(images)
                    labels = [int(torch.stack([z @ t for t in prompts]).argmax()) for z in features.detach()]
                    loss = plain.match_loss(features, prompts[labels], SCALE)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                sums = [total + leaf.detach() for total, leaf in zip(sums, self.leaves, strict=True)]
            self.set_leaves([total / len(self.prompts) for total in sums])
        mean = sum(self.prompts) / len(self.prompts)
        logits = SCALE * self.features(images) @ (mean / mean.norm(dim=1, keepdim=True)).T
        return logits.detach(), {"loss": loss.item(), "drift": self.drift, "stepped": True}


@pytest.mark.parametrize(
    "spec",
    [
        {"rounds": 2},
        {"mode": "p", "rounds": 3, "inner": 1},
        {"mode": "p", "rounds": 2, "lr": 3e-3},
        {"rounds": 1, "inner": 3, "lr": 3e-3},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    _, _, images = plain.make_problem()
    method = plain.make_method("watt", SCALE, names=plain.NAMES, reader=plain.make_reader())
    method, reference = lmr.create("watt", method.classifier, **spec), Reference(**spec)
    for batch in images[:11].split(4):
        expected, event = reference.step(batch)
        looked = method.predict(batch).logits
        answer = method.step(batch)
        assert torch.equal(looked, answer.logits)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        assert event["drift"] > 1e-4


def read_some(texts: Sequence[str]) -> Tensor:
    if "origami" in texts[0]:
        raise lmr.LmrError("There is no word 'origami'.")
    return plain.read_words(texts)


def test_templates_that_the_model_cannot_read_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    reader = lmr.TextReader(torch.nn.Identity(), read_some)
    with caplog.at_level(logging.WARNING, "lmr"):
        method = plain.make_method("watt(rounds=1)", names=plain.NAMES, reader=reader)
    assert "leaves out 'a origami {}.': There is no word 'origami'." in caplog.text
    assert len(method.prompts) == 7


def test_classifier_without_a_text_encoder_has_its_own_prompts_as_the_only_template() -> None:
    method = plain.make_method("watt(rounds=1)")
    assert torch.equal(method.prompts[0], method.classifier.prototypes)
    _, _, images = plain.make_problem()
    assert method.step(images[:4]).info["stepped"] is True


def test_embedded_model_of_photographs_reads_all_templates() -> None:
    method = lmr.create("watt", lmr.load("photo").classifier(["cat", "ship", "dog"]))
    assert method.prompts.shape[:2] == (8, 3)
    torch.testing.assert_close(method.prompts.norm(dim=-1), torch.ones(8, 3))
