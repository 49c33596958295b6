"""LayerNorm and a transformer block by hand, token by token and head by head, for the tests of the towers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def normalise(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def run_block(x: Tensor, block: Any, causal: bool) -> Tensor:
    """One block for one sample x [L, width], head by head, as Radford et al. write it."""
    length, width = x.shape
    part = width // block.heads
    q, k, v = (normalise(x, block.ln_1) @ block.qkv.weight.T + block.qkv.bias).split(width, dim=1)
    mixed = torch.zeros_like(x)
    for head in range(block.heads):
        own = slice(head * part, (head + 1) * part)
        score = q[:, own] @ k[:, own].T / math.sqrt(part)
        for row in range(length if causal else 0):
            score[row, row + 1 :] = -math.inf
        share = score.exp() / score.exp().sum(1, keepdim=True)
        mixed[:, own] = share @ v[:, own]
    x = x + mixed @ block.out.weight.T + block.out.bias
    hidden = normalise(x, block.ln_2) @ block.mlp.up.weight.T + block.mlp.up.bias
    hidden = hidden * torch.sigmoid({"quick_gelu": 1.702, "silu": 1.0}[block.mlp.activation] * hidden)
    return x + hidden @ block.mlp.down.weight.T + block.mlp.down.bias
