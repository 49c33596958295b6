"""CLIP's image tower. Of its last block only the class token is computed, as features need no other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lmr.core.errors import LmrError
from lmr.core.norms import RowNorm
from lmr.models.towers.block import Activation, Block

# Elements in the widest activation of the images that go through a CPU at once: four images of ViT-B/16. Measured on
# two cores: eight take as long and twice the memory, and larger activations are given back to the system after every
# layer, which then has to clear new memory.
_PART = 2_500_000


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of an image tower; the defaults are ViT-B/16's."""

    resolution: int = 224
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    features: int = 512
    hidden: int = 3072
    activation: Activation = "quick_gelu"
    eps: float = 1e-5


class VisionTower(nn.Module):
    """Images [B, 3, H, W] to features [B, features], not normalised."""

    is_clip = True  # False for a tower that embeds images in another way, which transformers has no model of
    patches: nn.Module

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.width
        tokens = (config.resolution // config.patch) ** 2
        self.config = config
        self.patches = nn.Conv2d(3, width, config.patch, stride=config.patch, bias=False)
        self.class_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(tokens + 1, width) * width**-0.5)
        self.ln_pre = RowNorm(width, eps=config.eps)
        self.blocks = nn.Sequential(*(Block(config, causal=False) for _ in range(config.depth)))
        self.ln_post = RowNorm(width, eps=config.eps)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, features] before normalisation."""
        return self.encode_tokens(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """Return class token and patches with positions [B, L, w], before the first norm."""
        shape = (3, self.config.resolution, self.config.resolution)
        if images.ndim != 4 or images.shape[1:] != shape:
            raise LmrError(f"Expected images {['B', *shape]}, got {list(images.shape)}.")
        class_token = self.class_token.expand(images.shape[0], 1, -1)
        return torch.cat([class_token, self._cut_patches(images)], dim=1) + self.positions

    def encode_tokens(self, tokens: Tensor) -> Tensor:
        """Return features [B, features] of what ``embed`` gives."""
        *early, last = (cast(Block, block) for block in self.blocks)
        x = self.ln_pre(tokens)
        for block in early:
            x = block(x)
        features: Tensor = self.ln_post(last.run_first(x)) @ self.projection
        return features

    def split_batch(self, count: int) -> Iterator[slice]:
        """Split a batch of ``count`` images into about equal parts that are best encoded one after the other."""
        parts = 1
        if self.positions.device.type == "cpu":
            parts = max(1, -(-count // max(1, _PART // (len(self.positions) * self.config.hidden))))
        bounds = [count * k // parts for k in range(parts + 1)]
        return (slice(first, last) for first, last in itertools.pairwise(bounds))

    def _cut_patches(self, images: Tensor) -> Tensor:
        """Return one token per patch [n, L - 1, w]; patches do not overlap, so one product embeds them."""
        patch, (n, colours) = self.config.patch, images.shape[:2]
        side = self.config.resolution // patch
        cut = images[:, :, : side * patch, : side * patch].reshape(n, colours, side, patch, side, patch)
        weight = cast(Tensor, self.patches.weight).flatten(1)
        return cut.permute(0, 2, 4, 1, 3, 5).reshape(n, side * side, -1) @ weight.T
