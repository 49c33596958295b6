"""Every method on a tower with a convolutional stem, against the same modules under plain autograd."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lmr
from few_views import create
from lmr.core.card import Tower
from lmr.data.catalogue import open_dataset
from lmr.data.names import read_list
from tiny_models import load_tiny

METHODS = lmr.list_methods()
ONE_TOWER = [name for name in METHODS if Tower.TEXT not in lmr.find_method(name).towers]
SIZES = (6, 6, 3)
SHAPE = (3, 32, 32)  # of an image


@pytest.fixture(scope="module")
def backbone() -> lmr.Backbone:
    return load_tiny("photo")


@pytest.fixture(scope="module")
def batches(backbone: lmr.Backbone) -> list[Tensor]:
    arrays = np.stack(open_dataset("photo-c").read("gaussian_noise", 3, range(sum(SIZES))))
    return list(backbone.preprocess(torch.from_numpy(arrays)).split(SIZES))


class PlainTower(nn.Module):
    """The same modules one after the other, with nothing but autograd."""

    def __init__(self, tower: Any) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, images: Tensor) -> Tensor:
        tower = self.tower
        grid = images
        for layer in tower.patches:
            y = layer.conv(grid)
            grid = {"plain": y, "relu": y.relu(), "residual": grid + y.relu() if y.shape == grid.shape else y}[
                layer.ending
            ]
        tokens = grid.flatten(2).transpose(1, 2)
        x = torch.cat([tower.class_token.expand(len(images), 1, -1), tokens], 1) + tower.positions
        x = tower.ln_post(tower.blocks(tower.ln_pre(x))[:, 0])
        features: Tensor = x @ tower.projection
        return features


@pytest.mark.parametrize("name", ONE_TOWER)
def test_stream_is_that_of_plain_autograd(name: str, backbone: lmr.Backbone, batches: list[Tensor]) -> None:
    classes = read_list("cifar10")
    prototypes = backbone.encode_text([f"a photo of a {word}." for word in classes]).double()
    towers = (copy.deepcopy(backbone.encoder).double(), PlainTower(copy.deepcopy(backbone.encoder).double()))
    spec = f"{name}(preset='cifar10-c')" if "cifar10-c" in lmr.find_method(name).card.presets else name
    pixels = backbone.classifier(classes).pixels
    fast, plain = (
        create(spec, lmr.ZeroShot(tower, prototypes, 100.0, names=classes, pixels=pixels, input_shape=SHAPE))
        for tower in towers
    )
    moved = False
    for batch in batches:
        one, other = fast.step(batch.double()), plain.step(batch.double())
        torch.testing.assert_close(one.logits, other.logits, rtol=0, atol=1e-7)
        moved |= not torch.allclose(one.logits, fast.classifier.logits(fast.classifier.cosines(
            fast.classifier.features(batch.double()))), atol=1e-6)  # fmt: skip
    assert moved == (name != "zeroshot")
