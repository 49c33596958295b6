"""MINT against the mathematics: sums, variances and mixing in loops, a fresh torch.optim.Adam for every batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import lmr_reference as book

CLASSES = 14


def make_problem(count: int = 67, seed: int = 4, kinds: int = 9) -> tuple[Any, Tensor, Tensor]:
    """A tower, prototypes [C, 10], and images of the first ``kinds`` classes only, clear and doubtful, in float64."""
    torch.manual_seed(seed)
    tower = book.Tower().double()
    anchors = torch.randn(CLASSES, 3, 6).double()
    noise = torch.tensor([0.1, 0.4])[torch.randint(2, (count, 1, 1))]
    images = anchors[torch.randint(kinds, (count,))] + noise * torch.randn(count, 3, 6)
    with torch.no_grad():
        return tower, tower(anchors), images


def subtract(one: list[float], other: list[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def square(vector: list[float]) -> float:
    return sum(a * a for a in vector)


class Accumulator:
    """Every feature of the stream, class by class; means are taken from scratch."""

    def __init__(self) -> None:
        self.features: dict[int, list[list[float]]] = {}

    def add(self, features: list[list[float]], labels: list[int]) -> None:
        for feature, label in zip(features, labels, strict=True):
            self.features.setdefault(label, []).append(feature)

    @property
    def count(self) -> int:
        return sum(map(len, self.features.values()))

    @property
    def mean(self) -> list[float]:
        return average([feature for group in self.features.values() for feature in group])

    def means(self, width: int) -> list[list[float]]:
        return [average(self.features[c]) if c in self.features else [0.0] * width for c in range(CLASSES)]


def average(vectors: list[list[float]]) -> list[float]:
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


class Reference:
    """One stream of MINT in float64. ``slack`` is how near any pseudo-label came to being another."""

    def __init__(self, tower: Any, prototypes: Tensor, lr: float = 7e-3, prior: float = 10000.0) -> None:
        self.encode = book.write_out(tower)
        self.start = [t.detach().double().clone() for norm in tower.norms for t in norm]
        self.leaves = [t.clone() for t in self.start]  # as the last batch left them
        self.prototypes = prototypes.double() / prototypes.double().norm(dim=1, keepdim=True)
        self.lr, self.prior = lr, prior
        self.pre, self.post = Accumulator(), Accumulator()
        self.gradients: list[list[Tensor]] = []
        self.slack = math.inf

    def see(self, images: Tensor, leaves: list[Tensor]) -> Tensor:
        features = self.encode(images.double(), list(zip(leaves[::2], leaves[1::2], strict=True)))
        return features / features.norm(dim=1, keepdim=True)

    def label(self, features: Tensor) -> list[int]:
        cosines = (features.detach() @ self.prototypes.T).sort(dim=1, descending=True)
        self.slack = min(self.slack, (cosines.values[:, 0] - cosines.values[:, 1]).min().item())
        return cosines.indices[:, 0].tolist()

    def mix(self) -> list[list[float]]:
        rho = self.post.count / (self.prior + self.post.count)
        mixed = []
        for text, mean in zip(self.prototypes.tolist(), self.post.means(self.prototypes.shape[1]), strict=True):
            sums = [(1 - rho) * t + rho * m for t, m in zip(text, mean, strict=True)]
            mixed.append([value / math.sqrt(square(sums)) for value in sums])
        return mixed

    def score(self, images: Tensor) -> Tensor:
        return 100 * self.see(images, self.leaves).detach() @ torch.tensor(self.mix(), dtype=torch.float64).T

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The answer after the step, and what happened."""
        leaves = [t.clone().requires_grad_() for t in self.start]
        features = self.see(images, leaves)
        labels, rows = self.label(features), features.tolist()
        first = [label for label in set(labels) if label not in self.pre.features and labels.count(label) == 1]
        self.pre.add(rows, labels)
        means, everything = self.pre.means(features.shape[1]), self.pre.mean
        between, pull = 0.0, torch.zeros_like(features)
        for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
            weight = 1 / (len(set(labels)) * labels.count(label))
            total, within = subtract(row, everything), subtract(row, means[label])
            between += weight * (square(total) - square(within))
            pull[i] = torch.tensor([-2 * weight * d for d in subtract(total, within)], dtype=torch.float64)
        self.gradients.append(list(torch.autograd.grad(features, leaves, pull)))
        adam = torch.optim.Adam(leaves, lr=self.lr)
        for k, leaf in enumerate(leaves):
            leaf.grad = torch.stack([gradients[k] for gradients in self.gradients]).mean(0)
        adam.step()
        self.leaves = [leaf.detach() for leaf in leaves]
        features = self.see(images, self.leaves)
        self.post.add(features.tolist(), self.label(features))
        rho = self.post.count / (self.prior + self.post.count)
        self.first = first
        return self.score(images), {"loss": -between, "classes": len(set(labels)), "rho": rho, "stepped": True}


def follow(size: int, count: int = 67, **spec: Any) -> tuple[lmr.Method, Reference, list[int]]:
    """Send one stream through the library and the reference, compare everything; also the classes seen first alone."""
    tower, prototypes, images = make_problem(count)
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    method, reference = lmr.create("mint", clip, **spec), Reference(tower, prototypes, **spec)
    batches, first = images.split(size), []
    assert len(batches) >= 8
    assert size == 1 or len(batches[-1]) < size
    for batch in batches:
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-7, rtol=0)
        assert set(answer.info) == {*event, "finite", "top_class_share"}
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-9)
        for key in event:
            assert type(answer.info[key]) is type(event[key]), key
        torch.testing.assert_close(method.predict(images).logits, reference.score(images), atol=1e-7, rtol=0)
        first.append(len(reference.first))
    assert reference.slack > 1e-7
    assert method.state["pre_counts"][0].tolist() == [len(reference.pre.features.get(c, [])) for c in range(CLASSES)]
    assert method.state["post_counts"][0].tolist() == [len(reference.post.features.get(c, [])) for c in range(CLASSES)]
    return method, reference, first


@pytest.mark.parametrize("size", [8, 1])
@pytest.mark.parametrize("spec", [{}, {"prior": 20}, {"prior": 0.5, "lr": 1e-3}, {"lr": 2e-2}], ids=str)
def test_stream_is_that_of_the_equations(spec: dict[str, Any], size: int) -> None:
    _, reference, first = follow(size, **spec)
    assert len(reference.pre.features) < CLASSES  # some classes never come
    assert len(reference.pre.features) >= 6
    assert any(first[1:])  # and some come late, as a single image
    moved = torch.cat([a - b for a, b in zip(reference.leaves, reference.start, strict=True)]).abs()
    assert moved.median() == pytest.approx(reference.lr, rel=1e-3)


@pytest.mark.parametrize("prior", [100, 1])
def test_long_stream_mixes_much_of_the_means_in(prior: float) -> None:
    method, reference, _ = follow(4, count=203, prior=prior)
    assert method.step(make_problem(203)[2][:4]).info["rho"] == pytest.approx(207 / (prior + 207))
    text, mixed = reference.prototypes, torch.tensor(reference.mix(), dtype=torch.float64)
    turned = (text * mixed).sum(1)
    seen = torch.tensor([c in reference.post.features for c in range(CLASSES)])
    assert turned[seen].max() < 1 - 1e-6
    assert turned[seen].min() < 0.99
    assert turned[~seen].min() > 1 - 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1, 5])
def test_one_class_alone_gives_no_gradient_and_no_noise(size: int, dtype: torch.dtype) -> None:
    """Class mean and global mean are one, so the gradient is 0: a sign step must not make rounding errors of it."""
    tower, prototypes, images = make_problem(20, kinds=1)
    tower, prototypes, images = tower.to(dtype), prototypes.to(dtype), images.to(dtype)
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    images = images[clip.cosines(clip.features(images)).argmax(1) == 0]
    assert len(images) >= 10
    method = lmr.create("mint(prior=1)", clip)
    for batch in images[:10].split(size):
        answer = method.step(batch)
        assert (answer.info["loss"], answer.info["classes"], answer.info["stepped"]) == (0, 1, True)
    assert not method.state["gradient"].any()
    zeroshot = clip.logits(clip.cosines(clip.features(images)))
    torch.testing.assert_close(method.predict(images).logits[:, 1:], zeroshot[:, 1:], atol=1e-4, rtol=0)
