"""The two towers of the pocket model, in CLIP's form and small: pre-norm transformers into one feature space.

Image tower: patches, a class token, positions, a norm before and after the blocks, a projection (Radford et al. 2021).
Text tower: causal blocks over words, read out at the end-of-text token, a final norm, a projection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class PocketConfig:
    """Sizes of the pocket model; written into the weights file so that the file says what it holds."""

    resolution: int = 32
    patch: int = 8
    width: int = 160
    depth: int = 5
    heads: int = 5
    text_width: int = 128
    text_depth: int = 2
    text_heads: int = 4
    context: int = 20
    vocabulary: int = 0
    features: int = 128


class Perceptron(nn.Module):
    """Two linear layers with CLIP's QuickGELU, x sigmoid(1.702 x), between them.

    x sigmoid(1.702 x) = silu(1.702 x) / 1.702, and the constants are cheaper on the small weights than on the large
    activations: one fused kernel that keeps one tensor for the backward instead of three.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(F.linear(x, 1.702 * self.up.weight, 1.702 * self.up.bias))
        return F.linear(hidden, self.down.weight / 1.702, self.down.bias)


class Block(nn.Module):
    """Norm, attention, norm, two-layer perceptron, each added to what came in. x: [B, L, width]."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Perceptron(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class ImageTower(nn.Module):
    """Images [B, 3, H, W] to features [B, features]."""

    def __init__(self, config: PocketConfig) -> None:
        super().__init__()
        width = config.width
        tokens = (config.resolution // config.patch) ** 2
        self.patches = nn.Conv2d(3, width, config.patch, stride=config.patch, bias=False)
        self.class_token = nn.Parameter(torch.randn(width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn(tokens + 1, width) * width**-0.5)
        self.ln_pre = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, config.heads, causal=False) for _ in range(config.depth)))
        self.ln_post = nn.LayerNorm(width)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1) + self.positions
        x = self.blocks(self.ln_pre(x))
        features: Tensor = self.ln_post(x[:, 0]) @ self.projection
        return features


class TextTower(nn.Module):
    """Token ids [B, L] (0 pads at the end) to features [B, features]; ``end`` [B] is where each text ends."""

    def __init__(self, config: PocketConfig) -> None:
        super().__init__()
        width = config.text_width
        self.words = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Parameter(torch.randn(config.context, width) * 0.01)
        self.blocks = nn.Sequential(*(Block(width, config.text_heads, causal=True) for _ in range(config.text_depth)))
        self.ln_final = nn.LayerNorm(width)
        self.projection = nn.Parameter(torch.randn(width, config.features) * width**-0.5)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: Tensor, end: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions[: tokens.shape[1]]
        x = self.ln_final(self.blocks(x))
        features: Tensor = x[torch.arange(len(x), device=x.device), end] @ self.projection
        return features


class PocketModel(nn.Module):
    """Both towers; features are not normalised here."""

    def __init__(self, config: PocketConfig) -> None:
        super().__init__()
        self.config = config
        self.image = ImageTower(config)
        self.text = TextTower(config)
