"""CLIP's text tower. It is causal, so tokens after the end of a text cannot influence its feature.

For the same reason a common beginning of several texts has the same activations in all of them: ``encode_after``
computes it once, with gradient, and of each text only the tokens after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.norms import RowNorm
from lmr.models.towers.block import Activation, Block
from lmr.models.towers.products import multiply


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
        self.blocks = nn.Sequential(*(Block(config, causal=True) for _ in range(config.depth)))
        self.ln_final = RowNorm(width, eps=config.eps)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: Tensor, end: Tensor) -> Tensor:
        """Return features [B, features], not normalised."""
        x = self.words(tokens) + self.positions[: tokens.shape[1]]
        x = self.blocks(x)
        x = x[torch.arange(len(x), device=x.device), end]
        features: Tensor = self.ln_final(x) @ self.projection
        return features


def encode_after(tower: TextTower, prefix: Tensor, tokens: Tensor, end: Tensor) -> Tensor:
    """Return features [k, features] of texts: the vectors ``prefix`` [P, w] followed by their own ``tokens`` [k, S].

    ``end`` [k] is where each text ends, counted from the first of its own tokens.
    """
    begun, length = len(prefix), tokens.shape[1]
    seen = torch.ones(length, begun + length, dtype=torch.bool, device=prefix.device).tril(begun)
    head = (prefix + tower.positions[:begun]).unsqueeze(0)
    x = tower.words(tokens) + tower.positions[begun : begun + length]
    *early, last = (cast(Block, block) for block in tower.blocks)
    for block in early:
        head, x = _run_block(block, head, x, seen)
    x = _run_last(last, head, x, seen[end].unsqueeze(1), end)
    features: Tensor = tower.ln_final(x) @ tower.projection
    return features


def _run_block(block: Block, head: Tensor, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Run a block on the common beginning [1, P, w] and on the tokens after it [k, S, w]."""
    own, rest = (block.split_heads(*block.qkv(block.ln_1(part)).chunk(3, -1)) for part in (head, x))
    mixed = F.scaled_dot_product_attention(own[0], own[1], own[2], is_causal=True)
    return block.finish(head, mixed), block.finish(x, _attend(rest[0], own, rest, seen))


def _run_last(block: Block, head: Tensor, x: Tensor, seen: Tensor, end: Tensor) -> Tensor:
    """Run the last block at the end of each text: [k, w]."""
    width, rows = x.shape[-1], torch.arange(len(x), device=x.device)
    own, h = block.split_heads(*block.qkv(block.ln_1(head)).chunk(3, -1)), block.ln_1(x)
    weight, bias = block.qkv.weight, block.qkv.bias
    asked = multiply(h[rows, end].unsqueeze(1), weight[:width], bias[:width])
    rest = block.split_heads(asked, *multiply(h, weight[width:], bias[width:]).chunk(2, -1))
    after = _attend(rest[0], own, rest, seen.unsqueeze(1))
    return block.finish(x[rows, end].unsqueeze(1), after).squeeze(1)


def _attend(q: Tensor, own: tuple[Tensor, ...], rest: tuple[Tensor, ...], seen: Tensor) -> Tensor:
    """Return the attention of queries [k, h, S, d] to the keys and values of the beginning and of their own text."""
    keys, values = (
        torch.cat([common.expand(len(each), -1, -1, -1), each], 2)
        for common, each in zip(own[1:], rest[1:], strict=True)
    )
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
