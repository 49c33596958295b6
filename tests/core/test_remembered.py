"""Batches are encoded once; others, and more than fit, are encoded as often as they come."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lmr
from lmr.core import remembered
from lmr.core.remembered import Kept, Remembered


class Counting(nn.Module):
    slow_to_embed = True

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.seen, self.embedded = nn.LayerNorm(12), 0, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        features: torch.Tensor = self.norm(images.flatten(1))
        return features

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        self.embedded += len(images)
        return images.flatten(1)

    def encode_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.norm(tokens)
        return features


def make_problem() -> tuple[Counting, lmr.ZeroShot, torch.Tensor]:
    tower = Counting()
    clip = lmr.ZeroShot(tower, torch.randn(3, 12, generator=torch.Generator().manual_seed(0)))
    return tower, clip, torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(1))


def test_each_batch_is_encoded_once_by_its_values() -> None:
    tower, clip, images = make_problem()
    once, expected = Remembered(clip, every=True), clip(images)
    tower.seen = 0
    for batch in (images, images.clone(), images.flip(0).flip(0)):
        assert torch.equal(once(batch), expected)
    assert tower.seen == 6
    once(images)[0] = 0  # the answer is the caller's
    assert torch.equal(once(images), expected)
    once(images[:4])  # in another batch digits may differ
    assert tower.seen == 10
    once(images + 1e-3)
    assert tower.seen == 16


def test_methods_share_the_tokens_before_their_norms() -> None:
    tower, clip, images = make_problem()
    alone, once = clip, Remembered(clip, every=True)
    expected = [lmr.create(name, alone).step(images).logits for name in ("tent", "lmr")]
    tower.embedded = 0
    found = [lmr.create(name, once).step(images.clone()).logits for name in ("tent", "lmr")]
    assert tower.embedded == 6
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_only_expected_batches_are_kept() -> None:
    tower, clip, images = make_problem()
    kept: Kept = {}
    first, second = Remembered(clip, kept), Remembered(clip, kept)
    first(images)
    assert not kept
    first.expect(images, "images")
    assert not first.knows(images)
    first(images), first(images[:2])
    assert tower.seen == 14
    second.expect(images, "images")
    assert second.knows(images)
    assert not second.knows(images.clone())
    assert torch.equal(second(images), first(images))
    assert tower.seen == 14
    assert second.spared > 0
    second.expect(images, "images", anew=True)
    second(images)
    assert (tower.seen, second.spared) == (20, 0)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clip, images = make_problem()
    monkeypatch.setattr(remembered, "MOST", 0)
    bounded = Remembered(clip, every=True)
    assert torch.equal(bounded(images), bounded(images))
    assert not bounded._kept
