"""CLIPTTA against loops, lists and torch's own Adam, whole streams in float64; the draws are taken from the library."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import lmr.methods.cliptta
import norm_reference as plain

SCALE = 12.0


class Reference(plain.NormReference):
    """One stream. ``draws`` holds, for every step, the places (class, number) that the library drew."""

    def __init__(
        self,
        draws: list[list[tuple[int, int]]],
        lr: float = 1e-4,
        steps: int = 10,
        shots: int = 4,
        sample: int = 40,
        memory: bool = True,
        batch: bool = True,
    ) -> None:
        super().__init__(SCALE)
        self.draws, self.steps, self.shots, self.memory, self.batch = draws, steps, shots, memory, batch
        self.most = max(1, min(sample, shots * plain.CLASSES) // plain.CLASSES)
        self.kept: list[list[tuple[float, Tensor]]] = [[] for _ in range(plain.CLASSES)]
        self.optimizer = torch.optim.Adam(self.leaves, lr=lr, eps=1e-6)
        self.replaced = self.refused = 0

    def enter(self, images: Tensor) -> None:
        for image, z in zip(images, self.features(images).detach(), strict=True):
            cosines = [float(z @ t) for t in self.prototypes]
            label = cosines.index(max(cosines))
            confidence = math.exp(cosines[label]) / sum(map(math.exp, cosines))
            own = self.kept[label]
            if len(own) < self.shots:
                own.append((confidence, image))
            else:
                worst = min(range(len(own)), key=lambda k: own[k][0])
                if confidence > own[worst][0]:
                    own[worst] = (confidence, image)
                    self.replaced += 1
                else:
                    self.refused += 1

    def measure(self, images: Tensor) -> Tensor:
        features = self.features(images)
        labels = [int(torch.stack([z @ t for t in self.prototypes]).argmax()) for z in features.detach()]
        captions = self.prototypes[labels]
        rows = torch.stack([torch.stack([SCALE * (z @ u) for u in captions]) for z in features])
        mean = sum((SCALE * self.prototypes @ z).softmax(0) for z in features) / len(features)
        return plain.measure_entropies(rows).mean() + (mean * torch.log(mean + 1e-6)).sum()

    def sample(self) -> Tensor:
        drawn = self.draws.pop(0)
        for label, own in enumerate(self.kept):
            places = [place for c, place in drawn if c == label]
            assert len(places) == len(set(places)) == min(self.most, len(own))
        return torch.stack([self.kept[label][place][1] for label, place in drawn])

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        if self.memory:
            self.enter(images)
        for _ in range(self.steps):
            loss = torch.zeros((), dtype=torch.float64)
            if self.batch:
                loss = loss + self.measure(images)
            if self.memory:
                loss = loss + self.measure(self.sample())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        held = sum(len(own) for own in self.kept)
        return self.score(images).detach(), {"loss": loss.item(), "drift": self.drift, "held": held, "stepped": True}


def record_draws(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    draws: list[list[tuple[int, int]]] = []
    draw = lmr.methods.cliptta.draw_by_class

    def record(*given: Any) -> list[tuple[int, int]]:
        draws.append(draw(*given))
        return list(draws[-1])

    monkeypatch.setattr(lmr.methods.cliptta, "draw_by_class", record)
    return draws


@pytest.mark.parametrize(
    "spec",
    [
        {"steps": 4},
        {"steps": 2, "sample": 30, "shots": 3, "lr": 2e-3},
        {"steps": 3, "shots": 2, "sample": 5, "lr": 1e-3},
        {"steps": 2, "batch": False, "lr": 1e-3},
        {"memory": False, "lr": 1e-3},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, images = plain.make_problem()
    draws = record_draws(monkeypatch)
    method, reference = plain.make_method("zeroshot", SCALE), Reference(draws, **spec)
    method = lmr.create("cliptta", method.classifier, **spec)
    for batch in images.split(9):
        answer = method.step(batch)
        expected, event = reference.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        plain.compare_norms(method, reference)
        for label, own in enumerate(reference.kept):
            if own:
                kept = method.state["confidence"][0, label, : len(own)].tolist()
                assert kept == pytest.approx([confidence for confidence, _ in own])
                held = method.state["images"][0, label, : len(own)]
                assert torch.equal(held, torch.stack([image for _, image in own]))
    assert not draws
    assert event["drift"] > 1e-4
    if spec.get("memory", True):
        assert reference.replaced > 0
        assert reference.refused > 0
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-8, rtol=0)


def test_draws_depend_on_the_seed_and_the_stream_alone(tmp_path: Path) -> None:
    _, _, images = plain.make_problem()
    clip = plain.make_method("zeroshot", SCALE).classifier
    ends = []
    for spec in ("cliptta(steps=2, sample=12)", "cliptta(steps=2, sample=12)", "cliptta(steps=2, sample=12, seed=7)"):
        method = lmr.create(spec, clip)
        torch.manual_seed(len(ends))
        for batch in images.split(9):
            method.save(tmp_path / "state")
            method = lmr.create(spec, clip)
            method.load(tmp_path / "state")
            method.step(batch)
        ends.append(method.state["norms"].clone())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_every_step_of_every_batch_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, images = plain.make_problem()
    draws = record_draws(monkeypatch)
    method = plain.make_method("cliptta(steps=2, sample=12)", SCALE)
    for batch in [*images.split(20), images[:20]]:
        method.step(batch)
    assert len({tuple(drawn) for drawn in draws[-4:]}) == 4


@pytest.mark.parametrize("classes", [10, 50, 64, 100, 200, 1000])
def test_sample_of_the_older_class_is_as_large_as_published(classes: int) -> None:
    """max(64, C) images in all, the same number of every class."""
    clip = lmr.ZeroShot(torch.nn.LayerNorm(4), torch.randn(classes, 4), input_shape=(4,))
    method = lmr.create("cliptta", clip, preset="imagenet")
    assert method.most == max(64, classes) // classes


def test_memory_of_images_needs_their_shape() -> None:
    clip = plain.make_method("zeroshot", SCALE).classifier
    clip.input_shape = None
    with pytest.raises(lmr.LmrError, match=r"cliptta keeps images.*input_shape"):
        lmr.create("cliptta", clip)
    _, _, images = plain.make_problem()
    assert lmr.create("cliptta(memory=False, steps=1)", clip).step(images[:5]).info["held"] == 0
