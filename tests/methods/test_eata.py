"""EATA and ETA against plain autograd: Fisher values, penalty and selections, whole streams in float64."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain


class Reference(plain.NormReference):
    """One stream of EATA, or of ETA without Fisher values, from the equations, with torch's own optimiser."""

    def __init__(
        self,
        fisher: float = 2000.0,
        diversity: float = 0.05,
        margin: float = 0.4,
        lr: float = 2.5e-4,
        optimizer: str = "adam",
        nesterov: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight, self.diversity, self.limit = fisher, diversity, margin * math.log(plain.CLASSES)
        self.optimizer = plain.make_optimizer(self.leaves, optimizer, lr, weight_decay, nesterov)
        self.importance = [torch.zeros_like(leaf) for leaf in self.start]
        self.average: Tensor | None = None

    def estimate(self, batches: list[Tensor]) -> None:
        for images in batches:
            logits = self.score(images)
            loss = torch.nn.functional.cross_entropy(logits, logits.argmax(1))
            for total, gradient in zip(self.importance, torch.autograd.grad(loss, self.leaves), strict=True):
                total += gradient**2 / len(batches)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        logits = self.score(images)
        p, entropies = logits.detach().softmax(1), plain.measure_entropies(logits)
        chosen = [i for i in range(len(images)) if entropies[i] < self.limit]
        certain = len(chosen)
        if self.average is not None:
            cosine = p @ self.average / (p.norm(dim=1) * self.average.norm())
            chosen = [i for i in chosen if abs(cosine[i]) < self.diversity]
        event = {"certain": certain, "diverse": len(chosen), "stepped": bool(chosen), "loss": 0.0}
        penalty = sum(
            (f * (leaf - start) ** 2).sum()
            for f, leaf, start in zip(self.importance, self.leaves, self.start, strict=True)
        )
        loss = self.weight * penalty
        if chosen:
            mean = p[chosen].mean(0)
            self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
            loss = loss + sum(torch.exp(self.limit - entropies[i].detach()) * entropies[i] for i in chosen) / len(
                chosen
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        event["loss"] = loss.item()
        return logits.detach(), event | {"drift": self.drift}


@pytest.mark.parametrize(
    "spec",
    [
        {"diversity": 0.7, "lr": 2e-3},
        {"diversity": 0.7, "lr": 2e-3, "fisher": 1.0},
        {"diversity": 0.7, "lr": 2e-3, "fisher": 300.0, "optimizer": "sgd", "nesterov": False},
        {"diversity": 0.7, "lr": 2e-3, "fisher": 300.0, "optimizer": "sgd"},
        {"diversity": 0.3, "margin": 0.3, "optimizer": "adamw"},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    _, _, images = plain.make_problem()
    method, reference = plain.make_method("eata"), Reference(**spec)
    method = lmr.create("eata", method.classifier, **spec)
    clean = list(images.flip(0).split(16))
    method.fit_source(clean)
    reference.estimate(clean)
    torch.testing.assert_close(method.state["fisher"][0], torch.cat(reference.importance), atol=1e-9, rtol=1e-9)
    events = []
    for batch in images.split(8):
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        plain.compare_norms(method, reference)
        events.append(event)
    assert sum(event["stepped"] for event in events) >= 4
    assert any(0 < event["diverse"] < event["certain"] for event in events)
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("size", [8, 1])
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"lr": 2e-3, "diversity": 0.7, "weight_decay": 0.1},
        {"lr": 2e-3, "diversity": 0.7, "margin": 0.2},
        {"lr": 2e-3, "diversity": 0.7, "optimizer": "sgd"},
        {"lr": 2e-3, "diversity": 0.7, "optimizer": "adamw", "weight_decay": 0.5},
    ],
    ids=str,
)
def test_stream_of_eta_is_that_of_the_equations(spec: dict[str, Any], size: int) -> None:
    _, _, images = plain.make_problem(count=91)
    method, reference = lmr.create("eta", plain.make_method("zeroshot").classifier, **spec), Reference(**spec)
    events = []
    for batch in images.split(size):
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-7, rtol=0)
        assert set(answer.info) == {*event, "finite", "top_class_share"}
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        if reference.average is not None:
            torch.testing.assert_close(method.state["average"][0], reference.average, atol=1e-9, rtol=0)
        events.append(event)
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-7, rtol=0)
    assert any(event["certain"] < size for event in events)
    assert any(event["diverse"] < event["certain"] for event in events)
    if spec:
        assert sum(event["stepped"] for event in events) >= 4


def test_without_fisher_values_it_is_eta_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    _, _, images = plain.make_problem()
    one, other = plain.make_method("eata"), plain.make_method("eta")
    with caplog.at_level(logging.WARNING, "lmr"):
        for batch in images.split(16):
            assert torch.equal(one.step(batch).logits, other.step(batch).logits)
    assert [record.message.startswith("eata has no Fisher values") for record in caplog.records] == [True]


def test_fisher_values_are_saved_and_stay_through_a_reset(tmp_path: Path) -> None:
    _, _, images = plain.make_problem()
    method = plain.make_method("eata(diversity=0.7)")
    method.fit_source([(batch, torch.zeros(len(batch))) for batch in images.split(16)])  # as loaders give them
    values = method.state["fisher"].clone()
    expected = [method.step(batch).logits for batch in images.split(8)]
    method.save(tmp_path / "state")
    other = plain.make_method("eata(diversity=0.7)")
    other.load(tmp_path / "state")
    other.reset()
    assert torch.equal(other.state["fisher"], values)
    assert values.any()
    assert all(map(torch.equal, [other.step(batch).logits for batch in images.split(8)], expected))


def test_streams_share_the_fisher_values() -> None:
    _, _, images = plain.make_problem()
    many = lmr.create("eata(diversity=0.7)", plain.make_method("eata").classifier, streams=2)
    alone = [plain.make_method("eata(diversity=0.7)") for _ in range(2)]
    for method in (many, *alone):
        method.fit_source(images.split(16))
    for number, batch in enumerate(images[:48].split(12)):
        ids = (torch.arange(12) + number) % 3 // 2
        mixed = many.step(batch, streams=ids).logits
        for k in range(2):
            torch.testing.assert_close(mixed[ids == k], alone[k].step(batch[ids == k]).logits, atol=1e-9, rtol=0)
