"""InfoMax on one tower and on both against sums over images and classes, whole streams in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import bimodal_reference as book
import lmr
import norm_reference as plain

Values = list[Tensor]


class Loss:
    """The two terms, element by element; ``strength`` is measured where it is "auto"."""

    def __init__(
        self,
        prior: str = "uniform",
        strength: Any = 1.0,
        margin: float | None = None,
        alpha: float = 0.1,
        power: float = 0.3,
        top: int = 5,
    ) -> None:
        self.prior, self.margin, self.alpha, self.power, self.top = prior, margin, alpha, power, top
        self.automatic = strength == "auto"
        self.strength = 0.0 if self.automatic else strength

    def find_prior(self, logits: Tensor) -> list[float]:
        classes, shares = logits.shape[1], [0.0] * logits.shape[1]
        for row in logits.tolist():
            ranking = sorted(range(classes), key=lambda c: -row[c])
            for rank, c in enumerate(ranking, 1):
                if self.prior == "top":
                    shares[c] += (rank <= self.top) / len(logits)
                else:
                    shares[c] += 1 / rank / sum(1 / j for j in range(1, classes + 1)) / len(logits)
        if self.prior == "uniform":
            return [1 / classes] * classes
        raised = [(share + self.alpha) ** self.power for share in shares]
        return [value / sum(raised) for value in raised]

    def certain(self, logits: Tensor) -> list[int]:
        limit = math.inf if self.margin is None else self.margin * math.log(logits.shape[1])
        return [i for i, value in enumerate(plain.measure_entropies(logits)) if value < limit]

    def terms(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        entropies, p = plain.measure_entropies(logits), logits.softmax(1)
        some = self.certain(logits)
        doubt = sum((entropies[i] for i in some), torch.zeros((), dtype=logits.dtype)) / max(1, len(some))
        mean, prior = p.sum(0) / len(p), self.find_prior(logits.detach())
        apart = torch.zeros((), dtype=logits.dtype)
        for c, share in enumerate(prior):
            if self.prior == "top":
                apart = apart + share * (math.log(share) - torch.log(mean[c]))
            else:
                apart = apart + mean[c] * (torch.log(mean[c]) - math.log(share))
        return doubt, apart

    def step(self, logits: Tensor, leaves: Values, optim: Any) -> dict[str, Any]:
        doubt, apart = self.terms(logits)
        if self.automatic and not self.strength and len(logits) > 1:
            lengths = []
            for term in (doubt, apart):
                gradients = torch.autograd.grad(term, leaves, retain_graph=True)
                lengths.append(math.sqrt(sum(float((g**2).sum()) for g in gradients)))
            self.strength = lengths[0] / lengths[1]
        loss, some = doubt + self.strength * apart, self.certain(logits)
        stepped = len(logits) > 1 and bool(some)
        if stepped:
            optim.zero_grad()
            loss.backward()
            optim.step()
        return {"loss": loss.item(), "strength": self.strength, "certain": len(some), "stepped": stepped}


class Reference(plain.NormReference):
    """One stream of InfoMax on the image tower."""

    def __init__(
        self, scale: float, lr: float = 1e-3, optimizer: str = "adam", weight_decay: float = 0.0, **how: Any
    ) -> None:
        super().__init__(scale)
        self.after, self.loss = how.pop("emit", "before") == "after", Loss(**how)
        self.optim = plain.make_optimizer(self.leaves, optimizer, lr, weight_decay)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        logits = self.score(images)
        event = self.loss.step(logits, self.leaves, self.optim)
        return (self.score(images) if self.after else logits).detach(), event | {"drift": self.drift}


SPECS: list[dict[str, Any]] = [
    {},
    {"prior": "rank", "strength": 2.0, "optimizer": "adamw", "weight_decay": 0.05},
    {"prior": "rank", "strength": "auto", "alpha": 0.02, "power": 0.8},
    {"prior": "top", "strength": 2.0, "top": 3, "emit": "after"},
    {"strength": "auto", "margin": 0.8, "optimizer": "sgd", "weight_decay": 0.01},
    {"margin": 0.6, "lr": 5e-3},
]


def follow(spec: dict[str, Any], sizes: list[int], scale: float = 30.0) -> list[dict[str, Any]]:
    _, _, images = plain.make_problem()
    method, reference = (
        lmr.create("infomax", plain.make_method("zeroshot", scale).classifier, **spec),
        Reference(scale, **spec),
    )
    events = []
    for batch in images.split(sizes):
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-10, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-10)
        plain.compare_norms(method, reference)
        events.append(event)
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-10, rtol=0)
    return events


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    events = follow(spec, [9, 8, 1, 9, 9, 9, 9, 5])
    assert [event["stepped"] for event in events][:3] == [True, True, False]  # a single image teaches nothing
    assert events[2]["drift"] == events[1]["drift"]
    assert events[-1]["drift"] > 1e-3
    if "margin" in spec:
        assert any(0 < event["certain"] < 9 for event in events)


def test_strength_is_measured_on_the_first_batch_of_several_images() -> None:
    events = follow({"strength": "auto"}, [1, 18, 20, 20])
    assert [event["stepped"] for event in events] == [False, True, True, True]
    assert events[0]["strength"] == 0
    assert len({event["strength"] for event in events[1:]}) == 1
    assert 0.05 < events[1]["strength"] < 20


def test_batch_without_a_certain_image_takes_no_step() -> None:
    events = follow({"margin": 1e-9}, [20, 20, 19])
    assert not any(event["stepped"] for event in events)
    assert events[-1]["drift"] == 0


def test_uniform_prior_is_the_entropy_of_the_mean_answer() -> None:
    """SHOT writes mean H(p) - H(m), which differs by ln C."""
    _, _, images = plain.make_problem()
    p = plain.NormReference(30.0).score(images[:9]).detach().softmax(1)
    mean = p.mean(0)
    shot = -(p * p.log()).sum(1).mean() + (mean * mean.log()).sum()
    answer = lmr.create("infomax", plain.make_method("zeroshot", 30.0).classifier).step(images[:9])
    assert answer.info["loss"] == pytest.approx(shot.item() + math.log(plain.CLASSES), abs=1e-9)


@pytest.mark.parametrize(
    ("spec", "chunk"),
    [
        ({}, 128),
        ({"prior": "rank", "strength": "auto", "optimizer": "adam", "weight_decay": 0.0}, 3),
        ({"prior": "top", "strength": 2.0, "top": 2, "emit": "after"}, 1),
    ],
    ids=str,
)
def test_stream_on_both_towers_is_that_of_the_equations(spec: dict[str, Any], chunk: int) -> None:
    problem = book.make_problem()
    method = lmr.create("infomax_both", problem.classifier, chunk=chunk, **spec)
    how = {"lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.01} | spec
    after = how.pop("emit", "before") == "after"
    reference = book.Reference(problem, *(how.pop(key) for key in ("lr", "optimizer", "weight_decay")))
    loss = Loss(**how)
    for images in book.make_images(42, seed=3).split(9):
        logits = reference.forward(images)[2]
        event = loss.step(logits, reference.numbers, reference.optim)
        answer = method.step(images)
        torch.testing.assert_close(
            answer.logits, reference.answer(images) if after else logits.detach(), atol=1e-10, rtol=0
        )
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-10)
        torch.testing.assert_close(method.state["norms"][0], reference.flat, atol=1e-10, rtol=0)
    moved = (reference.flat - reference.start).abs()
    count = sum(2 * norm.weight.numel() for norm in book.list_norms(method.classifier.encoder))
    assert moved[:count].max() > 1e-3
    assert moved[count:].max() > 1e-3
