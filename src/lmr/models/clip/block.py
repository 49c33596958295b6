"""The transformer block that CLIP's image and text towers are made of, with frozen weights arranged for speed."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.norms import RowNorm

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]


def activate(x: Tensor, name: Activation) -> Tensor:
    """The activation of a perceptron, element by element."""
    if name == "silu":
        return F.silu(x)
    if name == "quick_gelu":
        return F.silu(1.702 * x) / 1.702
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


class Perceptron(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: Activation = "quick_gelu") -> None:
        super().__init__()
        self.activation: Activation = activation
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] to [..., width]."""
        if self.activation == "quick_gelu":  # not folded: the constants are cheaper on weights than on activations
            hidden = F.silu(F.linear(x, 1.702 * self.up.weight, 1.702 * self.up.bias))
            return F.linear(hidden, self.down.weight / 1.702, self.down.bias)
        out: Tensor = self.down(activate(self.up(x), self.activation))
        return out

    def fold(self) -> None:
        """Fold QuickGELU's constants into the weights, permanently: from then on the activation is SiLU.

        x sigmoid(1.702 x) = silu(1.702 x) / 1.702, so scaling the two layers once leaves one fused kernel that keeps
        one tensor for the backward instead of three.
        """
        if self.activation != "quick_gelu":
            return
        with torch.no_grad():
            self.up.weight.mul_(1.702)
            self.up.bias.mul_(1.702)
            self.down.weight.div_(1.702)
        self.activation = "silu"


class Block(nn.Module):
    """Norm, attention, norm, perceptron with residual connections. x: [B, L, width]."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool,
        hidden: int | None = None,
        activation: Activation = "quick_gelu",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln_1 = RowNorm(width, eps=eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ln_2 = RowNorm(width, eps=eps)
        self.mlp = Perceptron(width, hidden or 4 * width, activation)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, width] to [B, L, width]."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


def fold_activations(tower: nn.Module) -> None:
    """Fold QuickGELU into the weights of every perceptron of a tower."""
    for module in tower.modules():
        if isinstance(module, Perceptron):
            module.fold()
