"""Ramen against one backward pass for each image and a list for each class, whole streams in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain

SCALE = 30.0
Entry = tuple[Tensor, list[Tensor], float]


class Reference(plain.NormReference):
    """One stream of Ramen. ``slack`` is the smallest gradient whose sign was taken."""

    def __init__(
        self, capacity: int = 750, topk: int = 5, beta: float = 5.0, lr: float = 0.01, optimizer: str = "signsgd"
    ) -> None:
        super().__init__(SCALE)
        self.capacity, self.topk, self.beta, self.lr, self.signs = capacity, topk, beta, lr, optimizer == "signsgd"
        self.memory: list[list[Entry]] = [[] for _ in range(plain.CLASSES)]
        self.slack = math.inf

    def enter(self, image: Tensor) -> None:
        logits = self.score(image)
        entropy = plain.measure_entropies(logits)[0]
        gradient = list(torch.autograd.grad(entropy, self.leaves))
        entries = self.memory[int(logits[0].argmax())]
        if len(entries) == self.capacity:
            entries.pop(0)
        entries.append((self.features(image)[0].detach(), gradient, entropy.item()))

    def move(self, image: Tensor) -> list[Tensor]:
        feature, total = self.features(image)[0].detach(), [torch.zeros_like(leaf) for leaf in self.start]
        filled = [entries for entries in self.memory if entries]
        for entries in filled:
            distances = [math.sqrt(float(((feature - z) ** 2).sum())) for z, _, _ in entries]
            for k in sorted(range(len(entries)), key=lambda k: distances[k])[: self.topk]:
                _, gradient, entropy = entries[k]
                weight = math.exp(-entropy) * math.exp(-self.beta * distances[k]) / len(filled)
                total = [t + weight * g for t, g in zip(total, gradient, strict=True)]
        if filled:
            self.slack = min(self.slack, *(float(t.abs().min()) for t in total))
        step = [t.sign() for t in total] if self.signs else total
        return [leaf - self.lr * s for leaf, s in zip(self.start, step, strict=True)]

    def answer(self, images: Tensor) -> Tensor:
        return torch.cat([self.score(image[None], self.move(image[None])) for image in images]).detach()

    def step(self, images: Tensor) -> Tensor:
        for image in images:
            self.enter(image[None])
        return self.answer(images)


def make_method(spec: dict[str, Any]) -> lmr.Method:
    return lmr.create("ramen", plain.make_method("zeroshot", SCALE).classifier, **spec)


SPECS: list[dict[str, Any]] = [
    {},
    {"capacity": 3, "topk": 2, "beta": 1.0, "lr": 0.02},
    {"capacity": 4, "topk": 1, "beta": 0.0},
    {"optimizer": "sgd", "lr": 0.3, "topk": 3},
    {"optimizer": "sgd", "lr": 0.3, "topk": 3, "capacity": 2},
]


@pytest.mark.parametrize("size", [9, 1])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_stream_is_that_of_the_equations(spec: dict[str, Any], size: int) -> None:
    _, _, images = plain.make_problem()
    method, reference = make_method(spec), Reference(**spec)
    frozen = plain.NormReference(SCALE).score(images).detach()
    moved = 0.0
    for number, batch in enumerate(images.split(size)):
        torch.testing.assert_close(method.predict(batch).logits, reference.answer(batch), atol=1e-10, rtol=0)
        expected, answer = reference.step(batch), method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-10, rtol=0)
        assert answer.info["held"] == sum(map(len, reference.memory))
        moved = max(moved, float((expected - frozen[number * size :][: len(batch)]).abs().max()))
    assert moved > 0.1
    assert reference.slack > 1e-13  # no sign is left to rounding
    label = method.state["label"][0]
    for c, entries in enumerate(reference.memory):
        own = method.state["features"][0][label == c]
        assert len(own) == len(entries)
        for feature, (z, _, _) in zip(own, entries, strict=True):
            torch.testing.assert_close(feature, z)
    if spec.get("capacity", 750) < 10:
        assert method.state["features"].shape[1] < len(images)


def test_first_image_alone_takes_a_sign_step_of_its_own_entropy() -> None:
    _, _, images = plain.make_problem()
    reference = plain.NormReference(SCALE)
    gradient = torch.autograd.grad(plain.measure_entropies(reference.score(images[:1]))[0], reference.leaves)
    leaves = [leaf - 0.01 * g.sign() for leaf, g in zip(reference.start, gradient, strict=True)]
    torch.testing.assert_close(make_method({}).step(images[:1]).logits, reference.score(images[:1], leaves).detach())


def test_empty_memory_answers_as_the_frozen_model() -> None:
    _, _, images = plain.make_problem()
    method = make_method({})
    assert torch.equal(method.predict(images).logits, method.classifier(images))


def test_large_memory_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    make_method({"capacity": 10})
    assert not caplog.records
    make_method({"capacity": 10**6})
    assert "bytes" in caplog.text
