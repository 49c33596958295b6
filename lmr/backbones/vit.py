"""CLIP's image tower, written for adaptation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lmr.backbones.transformer import Activation, Block
from lmr.core.norms import RowNorm


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

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.width
        tokens = (config.resolution // config.patch) ** 2
        self.config = config
        self.patches = nn.Conv2d(3, width, config.patch, stride=config.patch, bias=False)
        self.class_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(tokens + 1, width) * width**-0.5)
        self.ln_pre = RowNorm(width, eps=config.eps)
        self.blocks = nn.Sequential(
            *(
                Block(
                    width,
                    config.heads,
                    causal=False,
                    hidden=config.hidden,
                    activation=config.activation,
                    eps=config.eps,
                )
                for _ in range(config.depth)
            )
        )
        self.ln_post = RowNorm(width, eps=config.eps)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Features as the projection gives them."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1) + self.positions
        x = self.blocks(self.ln_pre(x))
        features: Tensor = self.ln_post(x[:, 0]) @ self.projection
        return features

    def set_mode(self, memory: Literal["fast", "lean"] = "fast", compile: bool = False) -> None:
        """How a step is computed, never what comes out: ``lean`` recomputes block by block instead of keeping much."""
        self.memory = memory
        self.compiled = compile
