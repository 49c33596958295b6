"""CLIP's text tower. It is causal, so that tokens after the end of a text cannot influence its feature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmr.core.locks import hold
from lmr.core.norms import RowNorm
from lmr.models.clip.block import Activation, Block


@dataclass(frozen=True)
class TextConfig:
    """Sizes of a text tower."""

    context: int = 77
    vocabulary: int = 49408
    width: int = 512
    depth: int = 12
    heads: int = 8
    features: int = 512
    hidden: int = 2048
    activation: Activation = "quick_gelu"
    eps: float = 1e-5


class TextTower(nn.Module):
    """Token ids [B, L] to features [B, features]; ``end`` [B] is where each text ends, L at most the context.

    Ids after the end are ignored, so a set of texts may be cut to the longest one.
    """

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.words = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Parameter(torch.randn(config.context, width) * 0.01)
        self.blocks = nn.Sequential(
            *(
                Block(
                    width,
                    config.heads,
                    causal=True,
                    hidden=config.hidden,
                    activation=config.activation,
                    eps=config.eps,
                )
                for _ in range(config.depth)
            )
        )
        self.ln_final = RowNorm(width, eps=config.eps)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: Tensor, end: Tensor) -> Tensor:
        """Features [B, features], not normalised."""
        with hold(self):  # its norms serve one thread at a time
            x = self.words(tokens) + self.positions[: tokens.shape[1]]
            x = self.blocks(x)
            x = x[torch.arange(len(x), device=x.device), end]
            features: Tensor = self.ln_final(x) @ self.projection
        return features
