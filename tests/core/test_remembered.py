"""Images are encoded once; others, and more than fit, are encoded as often as they come."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lmr
from lmr.core import remembered
from lmr.core.remembered import Remembered


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.seen = nn.LayerNorm(12), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        features: torch.Tensor = self.norm(images.flatten(1))
        return features


def test_each_image_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tower = Counting()
    clip = lmr.ZeroShot(tower, torch.randn(3, 12, generator=torch.Generator().manual_seed(0)))
    images = torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    expected, once = clip(images), Remembered(clip)
    tower.seen = 0
    for answers, expected_answers in (  # a product of more rows may round otherwise
        (once(images[:4]), expected[:4]),
        (once(images.flip(0)), expected.flip(0)),
        (once(torch.cat([images, images])), expected.repeat(2, 1)),
    ):
        torch.testing.assert_close(answers, expected_answers, atol=1e-4, rtol=0)
    assert tower.seen == 6
    once(images + 1e-3)
    assert tower.seen == 12
    method = lmr.create("tent", once)
    method.step(images)
    assert tower.seen > 12  # with norms of its own
    monkeypatch.setattr(remembered, "MOST", 0)
    bounded = Remembered(clip)
    assert torch.equal(bounded(images), bounded(images))
    assert not bounded._kept
