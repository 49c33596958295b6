"""TENT against the mathematics: the entropy's closed gradient in loops, torch.optim at the wheel, whole streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import lmr_reference as book

CLASSES = 12


def make_problem(seed: int = 3) -> tuple[Any, Tensor, Tensor]:
    """A tower, prototypes [C, 10] in groups of near ones, and 67 images, clear and doubtful, in float64."""
    torch.manual_seed(seed)
    tower = book.Tower().double()
    anchors = torch.randn(3, 3, 6).double().repeat_interleave(4, 0) + 0.1 * torch.randn(CLASSES, 3, 6).double()
    noise = torch.tensor([0.1, 0.5, 1.5])[torch.randint(3, (67, 1, 1))]
    images = anchors[torch.randint(CLASSES, (67,))] + noise * torch.randn(67, 3, 6)
    with torch.no_grad():
        return tower, tower(anchors), images


class Reference:
    """One stream of TENT in float64."""

    def __init__(self, tower: Any, prototypes: Tensor, optimizer: str = "adam", **options: float) -> None:
        self.encode = book.write_out(tower)
        self.leaves = [t.detach().double().clone().requires_grad_() for norm in tower.norms for t in norm]
        self.start = torch.cat([t.detach().clone() for t in self.leaves])
        self.prototypes = prototypes.double() / prototypes.double().norm(dim=1, keepdim=True)
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        extra = {"momentum": 0.9, "nesterov": True} if optimizer == "sgd" else {}
        self.optimizer = kinds[optimizer](self.leaves, **({"lr": 2.5e-4, "weight_decay": 0.0} | options | extra))

    def score(self, images: Tensor) -> Tensor:
        features = self.encode(images.double(), list(zip(self.leaves[::2], self.leaves[1::2], strict=True)))
        return 100 * (features / features.norm(dim=1, keepdim=True)) @ self.prototypes.T

    def step(self, images: Tensor) -> tuple[Tensor, float]:
        """The answer before the step, and the loss. For q = softmax(o): dH/do_c = -q_c (log q_c + H)."""
        logits = self.score(images)
        pull, loss = torch.zeros_like(logits), 0.0
        for i, row in enumerate(logits.tolist()):
            top = max(row)
            total = sum(math.exp(o - top) for o in row)
            logs = [o - top - math.log(total) for o in row]
            entropy = -sum(math.exp(log) * log for log in logs)
            loss += entropy / len(images)
            for c, log in enumerate(logs):
                pull[i, c] = -math.exp(log) * (log + entropy) / len(images)
        for leaf, gradient in zip(self.leaves, torch.autograd.grad(logits, self.leaves, pull), strict=True):
            leaf.grad = gradient
        self.optimizer.step()
        return logits.detach(), loss

    @property
    def drift(self) -> float:
        return float((torch.cat([t.detach() for t in self.leaves]) - self.start).norm() / self.start.norm())


@pytest.mark.parametrize("size", [8, 1])
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"lr": 1e-3},
        {"lr": 1e-3, "weight_decay": 0.1},
        {"optimizer": "adamw", "lr": 2e-3, "weight_decay": 0.5},
        {"optimizer": "adamw"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "lr": 1e-3, "weight_decay": 0.2},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any], size: int) -> None:
    tower, prototypes, images = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    method, reference = lmr.create("tent", clip, **spec), Reference(tower, prototypes, **spec)
    moved = 0.0
    batches = images.split(size)
    assert size == 1 or len(batches[-1]) < size
    for number, batch in enumerate(batches, 1):
        zeroshot = clip.logits(clip.cosines(clip.features(batch)))
        expected, loss = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-7, rtol=0)
        assert answer.info["loss"] == pytest.approx(loss, abs=1e-9)
        assert answer.info["stepped"] is True
        assert answer.info["drift"] == pytest.approx(reference.drift, abs=1e-9)
        assert set(answer.info) == {"loss", "stepped", "drift", "finite", "top_class_share"}
        assert method.state["steps"].tolist() == [number]
        moved = max(moved, (answer.logits - zeroshot).abs().max().item())
        if number == 1:  # the answer of the first batch knows nothing of its own step
            torch.testing.assert_close(answer.logits, zeroshot, atol=1e-9, rtol=0)
    assert moved > 0.01  # a hundred thousand times the tolerance
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-7, rtol=0)


def test_precision_is_that_of_the_tower_but_not_below_float32() -> None:
    tower, prototypes, images = make_problem()
    for kind, wide in ((torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        method = lmr.create("tent", lmr.ZeroShot(tower.to(kind), prototypes.to(kind), 100.0))
        answer = method.step(images[:8].to(kind))
        assert answer.logits.dtype == wide
        assert {value.dtype for value in method.state.values()} == {wide, torch.int64}
        assert answer.info["drift"] > 0
