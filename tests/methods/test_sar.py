"""SAR against plain autograd with the two passes of its step written out, whole streams in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lmr
import norm_reference as plain
from lmr.models.towers.image import VisionConfig, VisionTower


class Reference(plain.NormReference):
    """One stream of SAR."""

    def __init__(self, lr: float = 1e-3, rho: float = 0.05, recovery: float = 0.2, margin: float = 0.4) -> None:
        super().__init__()
        self.lr, self.rho, self.recovery, self.limit = lr, rho, recovery, margin * math.log(plain.CLASSES)
        self.buffers = [torch.zeros_like(leaf) for leaf in self.start]
        self.running: float | None = None

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        logits = self.score(images)
        entropies = plain.measure_entropies(logits)
        certain = [i for i in range(len(images)) if entropies[i] < self.limit]
        still: list[int] = []
        gradients, loss = [torch.zeros_like(leaf) for leaf in self.leaves], math.nan
        if certain:
            first = torch.autograd.grad(entropies[certain].mean(), self.leaves)
            length = math.sqrt(sum(float((g**2).sum()) for g in first)) + 1e-12
            uphill = [(leaf + self.rho * g / length).detach() for leaf, g in zip(self.leaves, first, strict=True)]
            uphill = [leaf.requires_grad_() for leaf in uphill]
            again = plain.measure_entropies(self.score(images, uphill))
            still = [i for i in certain if again[i] < self.limit]
            if still:
                value = again[still].mean()
                gradients, loss = list(torch.autograd.grad(value, uphill)), value.item()
        for leaf, buffer, gradient in zip(self.leaves, self.buffers, gradients, strict=True):
            buffer.mul_(0.9).add_(gradient)
            leaf.data -= self.lr * buffer
        if not math.isnan(loss):
            self.running = loss if self.running is None else 0.9 * self.running + 0.1 * loss
        recovered = self.running is not None and self.running < self.recovery
        if recovered:
            self.set_leaves(self.start)
            self.running = None
        event = {"certain": len(certain), "still_certain": len(still), "recovered": recovered, "drift": self.drift}
        return logits.detach(), event | {"loss": 0.0 if math.isnan(loss) else loss}


def follow(size: int = 8, order: Tensor | None = None, **spec: Any) -> list[dict[str, Any]]:
    _, _, images = plain.make_problem()
    images = images if order is None else images[order]
    method, reference = lmr.create("sar", plain.make_method("sar").classifier, **spec), Reference(**spec)
    events = []
    for batch in images.split(size):
        expected, event = reference.step(batch)
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        plain.compare_norms(method, reference)
        torch.testing.assert_close(method.state["momentum"][0], torch.cat(reference.buffers), atol=1e-8, rtol=0)
        assert method.state["running"].item() == pytest.approx(reference.running or 0.0, abs=1e-9)
        assert bool(method.state["losses"] > 0) == (reference.running is not None)
        events.append(event)
    torch.testing.assert_close(method.predict(images).logits, reference.score(images).detach(), atol=1e-8, rtol=0)
    return events


@pytest.mark.parametrize(
    "spec", [{}, {"lr": 0.01, "recovery": 0.0}, {"rho": 0.5}, {"margin": 0.7, "rho": 0.2}, {"margin": 0.15}], ids=str
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    events = follow(**spec)
    assert any(0 < event["certain"] < 8 for event in events)
    assert events[-1]["drift"] > 1e-5 or any(event["recovered"] for event in events)


def test_samples_drop_out_uphill() -> None:
    events = follow(rho=0.5, recovery=0.0)
    assert any(0 < event["still_certain"] < event["certain"] for event in events)


def test_recovery_restores_the_norms_and_starts_the_mean_again() -> None:
    events = follow(recovery=0.5, lr=0.01)
    assert 2 <= sum(event["recovered"] for event in events) < len(events)


def test_batch_without_a_certain_sample_moves_by_momentum_alone() -> None:
    method = plain.make_method("sar")
    _, _, images = plain.make_problem()
    order = plain.measure_entropies(method.predict(images).logits).argsort()
    events = follow(8, torch.cat([order[:16], order[-8:], order[16:32]]), margin=0.3, recovery=0.0, lr=0.01)
    nobody = [k for k, event in enumerate(events) if not event["certain"]]
    assert nobody
    assert all(events[k]["drift"] != events[k - 1]["drift"] for k in nobody)


class Deep(nn.Module):
    """Thirteen blocks with a norm each, and a last norm."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(13))
        self.add_module(last, nn.LayerNorm(4))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        for block in self.resblocks:
            x = x + block(x)
        return getattr(self, self.last)(x)


@pytest.mark.parametrize(("last", "norms"), [("ln_post", 11), ("norm", 10)])
def test_norms_of_three_blocks_do_not_adapt(last: str, norms: int) -> None:
    clip = lmr.ZeroShot(Deep(last).double(), torch.eye(4, dtype=torch.float64).flip(0), 20.0)
    method = lmr.create("sar", clip)
    assert method.trainable == norms * 8
    names = {norm.name for norm in method.bank.norms}
    assert not names & {"resblocks.9.0", "resblocks.10.0", "resblocks.11.0", "norm"}
    assert {"resblocks.8.0", "resblocks.12.0"} <= names
    method.step(torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def test_clip_s_tower_adapts_as_many_norms_as_published() -> None:
    """ViT-B/16 has 768 channels and 30,720 parameters that adapt: ln_pre, those of blocks 0 to 8, and ln_post."""
    tower = VisionTower(VisionConfig(resolution=8, patch=4, width=16, heads=2, features=4, hidden=16))
    method = lmr.create("sar", lmr.ZeroShot(tower, torch.eye(4).flip(0)))
    assert method.trainable * 768 // 16 == 30_720
