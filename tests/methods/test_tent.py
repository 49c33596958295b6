"""TENT against plain autograd with torch.optim at the wheel, whole streams in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain


class Reference(plain.NormReference):
    """One stream of TENT in float64."""

    def __init__(self, optimizer: str = "adam", lr: float = 2.5e-4, weight_decay: float = 0.0) -> None:
        super().__init__()
        self.optimizer = plain.make_optimizer(self.leaves, optimizer, lr, weight_decay)

    def step(self, images: Tensor) -> tuple[Tensor, float]:
        """The answer before the step, and the loss."""
        logits = self.score(images)
        loss = plain.measure_entropies(logits).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return logits.detach(), loss.item()


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
    _, _, images = plain.make_problem()
    clip, reference = plain.make_method("zeroshot").classifier, Reference(**spec)
    method = lmr.create("tent", clip, **spec)
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
