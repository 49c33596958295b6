"""The plain loops on transformers and the library's own methods give the same answers: two ways, one result."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lmr
from lab.cost.plain import PlainLMR, PlainTENT
from lab.cost.vision import build_transformers_vision
from lmr.models.towers.block import fold_activations
from lmr.models.towers.image import VisionConfig, VisionTower

TINY = VisionConfig(resolution=16, patch=4, width=32, depth=3, heads=4, features=24, hidden=64)


def make_tower(config: VisionConfig = TINY, fold: bool = True) -> VisionTower:
    torch.manual_seed(5)
    tower = VisionTower(config).eval().requires_grad_(False)
    for module in tower.modules():
        if isinstance(module, nn.LayerNorm):  # none of its numbers is as it was initialised
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.2)
    if fold:
        fold_activations(tower)
    return tower


def make_stream(tower: VisionTower, classes: int = 12) -> tuple[Tensor, list[Tensor]]:
    """Prototypes [C, D] that are features of anchors, and batches of anchors with little and with much noise."""
    torch.manual_seed(6)
    anchors = torch.randn(classes, 3, 16, 16) + 0.3 * torch.randn(classes, 3, 1, 1)
    with torch.no_grad():
        prototypes = F.normalize(tower(anchors), dim=-1)
    noise = torch.tensor([0.1, 0.5, 1.5])[torch.randint(3, (56, 1, 1, 1))]
    images = anchors[torch.randint(classes, (56,))] + noise * torch.randn(56, 3, 16, 16)
    return prototypes, list(images.split(8))


def test_plain_lmr_and_ours_answer_alike_over_a_stream() -> None:
    tower = make_tower()
    prototypes, batches = make_stream(tower)
    method = lmr.create("lmr", lmr.ZeroShot(tower, prototypes), preset="default")
    loop = PlainLMR(build_transformers_vision(tower), method.classifier.prototypes)
    shares = []
    for images in batches:
        answer, (logits, info) = method.step(images), loop.step(images)
        torch.testing.assert_close(logits, answer.logits, atol=1e-4, rtol=0)
        assert info["gate_share"] == pytest.approx(answer.info["gate_share"])
        shares.append(info["gate_share"])
    assert len(batches) == 7
    assert 0 < min(shares) < 1, shares  # some samples past the gate, some not
    assert answer.info["drift"] > 1e-3
    torch.testing.assert_close(loop.bias, method.state["bias"][0], atol=1e-4, rtol=0)


def test_plain_tent_and_ours_answer_alike_and_reset_forgets() -> None:
    tower = make_tower()
    prototypes, batches = make_stream(tower)
    method = lmr.create("tent", lmr.ZeroShot(tower, prototypes))
    loop = PlainTENT(build_transformers_vision(tower), method.classifier.prototypes)
    first = loop.forward(batches[0])
    for _ in range(2):
        for images in batches[:4]:
            torch.testing.assert_close(loop.step(images)[0], method.step(images).logits, atol=1e-4, rtol=0)
        assert (loop.forward(batches[0]) - first).abs().max() > 1e-2
        loop.reset()
        method.reset()
        torch.testing.assert_close(loop.forward(batches[0]), first)
