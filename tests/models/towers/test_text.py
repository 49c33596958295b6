"""The common beginning of texts computed once: features and gradients against the whole tower."""

from __future__ import annotations

import pytest
import torch

from lmr.models.towers.text import TextConfig, TextTower, encode_after

CONFIG = TextConfig(context=14, vocabulary=40, width=16, depth=3, heads=2, features=10, hidden=32)


def make_tower(depth: int = 3) -> TextTower:
    torch.manual_seed(0)
    tower = TextTower(TextConfig(**{**vars(CONFIG), "depth": depth})).double().requires_grad_(False)
    tower.words.weight.mul_(40)
    return tower


def encode_whole(tower: TextTower, prefix: torch.Tensor, tokens: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Every text for itself, through the modules of the tower."""
    x = (
        torch.cat([prefix.expand(len(tokens), -1, -1), tower.words(tokens)], 1)
        + tower.positions[: len(prefix) + tokens.shape[1]]
    )
    x = tower.blocks(x)[torch.arange(len(tokens)), len(prefix) + end]
    features: torch.Tensor = tower.ln_final(x) @ tower.projection
    return features


@pytest.mark.parametrize(("depth", "begun", "length"), [(3, 4, 6), (1, 5, 3), (2, 1, 1), (3, 9, 5)])
def test_features_and_gradients_are_those_of_the_whole_tower(depth: int, begun: int, length: int) -> None:
    tower = make_tower(depth)
    generator = torch.Generator().manual_seed(1)
    prefix = torch.randn(begun, 16, generator=generator, dtype=torch.float64).requires_grad_()
    tokens = torch.randint(3, 40, (7, length), generator=generator)
    end = torch.randint(0, length, (7,), generator=generator)
    pull = torch.randn(7, 10, generator=generator, dtype=torch.float64)
    found, expected = encode_after(tower, prefix, tokens, end), encode_whole(tower, prefix, tokens, end)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    gradients = [torch.autograd.grad(features, prefix, pull)[0] for features in (found, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-10, rtol=0)
    assert gradients[0].abs().max() > 1e-3
