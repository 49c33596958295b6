"""TPS against plain autograd and torch's own AdamW, image by image, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import feature_streams as plain
import lmr
from pocket import load_pocket
from view_problem import choose_confident, measure_mean_entropy


def answer_image(
    prototypes: Tensor,
    views: Tensor,
    lr: float = 5e-3,
    weight_decay: float = 0.01,
    keep: float = 0.1,
    steps: int = 1,
    per_class: bool = True,
) -> Tensor:
    """The logits [C] of the first view after the last step."""
    text = torch.stack([plain.unit(row) for row in prototypes])
    features = torch.stack([plain.unit(view) for view in views])
    shift = torch.zeros(len(text) if per_class else 1, text.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([shift], lr=lr, weight_decay=weight_decay, betas=(0.9, 0.999))

    def score() -> Tensor:
        moved = torch.stack([plain.unit(row) for row in text + shift])
        return plain.SCALE * features @ moved.T

    for _ in range(steps):
        logits = score()
        loss = measure_mean_entropy(logits[choose_confident(logits.detach(), keep)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return score()[0].detach()


@pytest.mark.parametrize(
    ("given", "views"),
    [
        ({}, 24),
        ({"steps": 3, "lr": 0.05, "keep": 0.3}, 10),
        ({"steps": 4, "lr": 0.1, "weight_decay": 0.5, "keep": 0.4}, 6),
        ({"per_class": False, "lr": 0.05, "steps": 2}, 20),
        ({"keep": 0.1, "lr": 0.02}, 3),
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(given: dict[str, Any], views: int) -> None:
    prototypes, features = plain.make_stream(7, 30)
    method = lmr.create("tps", plain.make_method("zeroshot", prototypes).classifier, **given)
    moved = 0.0
    for batch in plain.make_views(features, views).split(7):
        expected = torch.stack([answer_image(prototypes, image, **given) for image in batch])
        answer = method.step(batch)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        torch.testing.assert_close(method.predict(batch).logits, expected, atol=1e-8, rtol=0)
        moved = max(moved, float((method.classifier(batch[:, 0]) - expected).abs().max()))
    assert moved > 0.01
    assert method.trainable == (12 if given.get("per_class") is False else 7 * 12)


def test_views_are_made_of_images() -> None:
    clip = load_pocket().classifier(["red ring", "blue star", "green heart"])
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for spec in ("tps(views=8)", "tps(views=8, augmix=True)"):
        method = lmr.create(spec, clip)
        assert not torch.equal(method.step(images).logits, clip(images))
        assert int(method.state["seen"]) == 4
