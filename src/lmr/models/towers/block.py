"""The transformer block of CLIP's towers: one product for queries, keys and values, and QuickGELU as one kernel."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.norms import RowNorm
from lmr.models.towers.products import Linear, multiply

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]


def activate(x: Tensor, name: Activation) -> Tensor:
    """Apply the activation of a perceptron, element by element; without gradient ``x`` may be overwritten."""
    if name == "silu":
        return F.silu(x, inplace=not torch.is_grad_enabled())  # a twentieth of a forward
    if name == "quick_gelu":
        return F.silu(1.702 * x) / 1.702
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Return the attention [n, heads, L, w] of queries over keys and values; its softmax is in float32 at least.

    In bfloat16 on a CPU two products and a softmax are three times as fast as torch's fused kernel, and four times with
    the backward.
    """
    if causal or q.dtype != torch.bfloat16 or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    return scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v


class Perceptron(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.up = Linear(width, hidden)
        self.down = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to [..., width]."""
        if self.activation == "quick_gelu":  # not folded: the constants are cheaper on weights than on activations
            hidden = F.silu(multiply(x, 1.702 * self.up.weight, 1.702 * self.up.bias))
            return multiply(hidden, self.down.weight / 1.702, self.down.bias)
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
    """Norm, attention, norm, perceptron with residual connections, in the sizes of the ``config`` of its tower."""

    def __init__(self, config: Any, *, causal: bool) -> None:
        super().__init__()
        width, self.heads, self.causal, self.eps = config.width, config.heads, causal, config.eps
        self.ln_1 = RowNorm(width, eps=self.eps)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.ln_2 = RowNorm(width, eps=self.eps)
        self.mlp = Perceptron(width, config.hidden, config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, L, width] to [B, L, width]."""
        q, k, v = self.split_heads(*self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        return self.finish(x, attend(q, k, v, causal=self.causal))

    def run_first(self, x: Tensor) -> Tensor:
        """Return the output [B, width] of the first token of x [B, L, width]; keys and values need all tokens."""
        h, width = self.ln_1(x), x.shape[-1]
        query = multiply(h[:, :1], self.qkv.weight[:width], self.qkv.bias[:width])
        both = multiply(h, self.qkv.weight[width:], self.qkv.bias[width:])
        q, k, v = self.split_heads(query, *both.chunk(2, dim=-1))
        return self.finish(x[:, :1], attend(q, k, v))[:, 0]

    def split_heads(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Map each [n, L, w] to [n, heads, L, w / heads]."""
        return tuple(part.reshape(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in parts)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the output of the block from its input and from the attention [n, heads, L, w / heads]."""
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


def fold_activations(tower: nn.Module) -> None:
    """Fold QuickGELU into the weights of every perceptron of a tower."""
    for module in tower.modules():
        if isinstance(module, Perceptron):
            module.fold()
