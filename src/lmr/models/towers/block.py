"""The transformer block of CLIP's towers, and its forward and backward as pure functions that reach the norms alone.

The weights are frozen, so the backward carries a gradient to activations only, and of each block it needs few things:
the inputs of the two norms, the queries, keys and values, and the input of the activation. Attention is computed again
from queries, keys and values, because its probabilities take more memory than they do. Shapes: n images, L tokens,
width w, T output tokens: all of them, or in the last block the class token alone, as the features need no other. The
parameters of a norm are [w], or [n, w] where every image has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.norms import RowNorm
from lmr.models.towers.buffers import Arena

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]


def activate(x: Tensor, name: Activation) -> Tensor:
    """Apply the activation of a perceptron, element by element."""
    if name == "silu":
        return F.silu(x)
    if name == "quick_gelu":
        return F.silu(1.702 * x) / 1.702
    return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")


class Perceptron(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, width: int, hidden: int, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to [..., width]."""
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
    """Norm, attention, norm, perceptron with residual connections, in the sizes that the ``config`` of its tower names.

    ``forward`` is for gradients of any kind. ``run`` and ``pull`` are the forward and the backward to the norms alone,
    with given parameters of the two norms.
    """

    def __init__(self, config: Any, *, causal: bool) -> None:
        super().__init__()
        width, self.heads, self.causal, self.eps = config.width, config.heads, causal, config.eps
        self.ln_1 = RowNorm(width, eps=self.eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ln_2 = RowNorm(width, eps=self.eps)
        self.mlp = Perceptron(width, config.hidden, config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, L, width] to [B, L, width]."""
        q, k, v = self.split_heads(*self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=self.causal))

    def split_heads(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Map each [n, L, w] to [n, heads, L, w / heads]."""
        return tuple(part.reshape(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in parts)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the output of the block from its input and from the attention [n, heads, L, w / heads]."""
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out

    def run(
        self, x: Tensor, norms: BlockNorms, class_only: bool, keep: bool, arena: Arena | None = None
    ) -> tuple[Tensor, Trace | None]:
        """Map [n, L, w] to [n, T, w], T = L or the class token alone, without gradient; add the trace if ``keep``.

        The output, which the next block keeps as its input, goes to the arena too. Without ``keep``, ``x`` is
        overwritten.
        """
        middle, trace = self.push(x, norms, class_only, arena)
        weight, bias, name = self.mlp.down.weight, self.mlp.down.bias, self.mlp.activation
        if keep:
            return project(activate_into(arena, trace.hidden, name), weight, bias, arena).add_(middle), trace
        active = F.silu(trace.hidden, inplace=True) if name == "silu" else activate(trace.hidden, name)
        if class_only:
            return project(active, weight, bias, arena).add_(middle), None
        flat = torch.add(middle, bias, out=x).flatten(0, 1)
        torch.addmm(flat, active.flatten(0, 1), weight.T, out=flat)
        return x, None

    def push(self, x: Tensor, norms: BlockNorms, class_only: bool, arena: Arena | None = None) -> tuple[Tensor, Trace]:
        """Run all but the last layer; return the residual for that layer and the trace, which holds its input."""
        h, seen = normalise(x, norms[0], self.eps, arena)
        width, weight, bias = x.shape[-1], self.qkv.weight, self.qkv.bias
        if class_only:
            q = F.linear(h[:, :1], weight[:width], bias[:width])
            kv = project(h, weight[width:], bias[width:], arena)
            x = x[:, :1]
        else:
            qkv = project(h, weight, bias, arena)
            q, kv = qkv[..., :width], qkv[..., width:]
        middle = project(attend(q, kv, self.heads), self.out.weight, self.out.bias, arena).add_(x)
        h, again = normalise(middle, norms[1], self.eps, arena)
        return middle, Trace(seen, q, kv, again, project(h, self.mlp.up.weight, self.mlp.up.bias, arena))

    def pull(self, grad: Tensor, trace: Trace, norms: BlockNorms) -> tuple[Tensor, NormParameters, NormParameters]:
        """Return gradients to the input [n, L, w] and to both norms from the gradient of the output [n, T, w]."""
        to_hidden = pull_activation(grad @ self.mlp.down.weight, trace.hidden, self.mlp.activation)
        to_middle, to_second = pull_norm(to_hidden @ self.mlp.up.weight, trace.second, norms[1])
        to_middle = to_middle.to(grad.dtype).add_(grad)
        to_mixed = to_middle @ self.out.weight
        tokens, width = grad.shape[1:]
        weight = self.qkv.weight
        if tokens < trace.kv.shape[1]:
            to_q, to_kv = torch.empty_like(trace.q), torch.empty_like(trace.kv)
            pull_attention(to_mixed, trace.q, trace.kv, self.heads, to_q, to_kv)
            to_h = to_kv @ weight[width:]
            to_h[:, :tokens] += to_q @ weight[:width]
        else:
            to_qkv = to_mixed.new_empty(*grad.shape[:2], 3 * width)
            pull_attention(to_mixed, trace.q, trace.kv, self.heads, to_qkv[..., :width], to_qkv[..., width:])
            to_h = to_qkv @ weight
        to_x, to_first = pull_norm(to_h, trace.first, norms[0])
        to_x = to_x.to(grad.dtype)
        to_x[:, :tokens] += to_middle
        return to_x, to_first, to_second


def fold_activations(tower: nn.Module) -> None:
    """Fold QuickGELU into the weights of every perceptron of a tower."""
    for module in tower.modules():
        if isinstance(module, Perceptron):
            module.fold()


NormParameters = tuple[Tensor, Tensor]  # weight and bias of a norm
BlockNorms = Sequence[NormParameters]  # of the two norms of a block

_aten = torch.ops.aten
# Devices on which one fused kernel per image is faster (twice) than one kernel for all images and scaling afterwards.
_LOOPING = ("cpu",)
_SCORES = 500_000  # attention scores computed at once: those of one image of ViT-B/16; measured on two cores


class Normed(NamedTuple):
    """The input of a norm, and its mean and inverse standard deviation over the last axis."""

    x: Tensor
    mean: Tensor
    inverse: Tensor

    def select(self, rows: Tensor) -> Normed:
        """Return the same for some of the images."""
        return Normed(self.x[rows], self.mean[rows], self.inverse[rows])


class Trace(NamedTuple):
    """All that the backward of a block needs: the two norms, queries, keys and values, the activation's input."""

    first: Normed
    q: Tensor  # [n, T, w]
    kv: Tensor  # [n, L, 2w]
    second: Normed
    hidden: Tensor  # [n, T, hidden]

    def select(self, rows: Tensor) -> Trace:
        """Return the same for some of the images."""
        return Trace(self.first.select(rows), self.q[rows], self.kv[rows], self.second.select(rows), self.hidden[rows])


def normalise(x: Tensor, parameters: NormParameters, eps: float, arena: Arena | None = None) -> tuple[Tensor, Normed]:
    """Apply LayerNorm in the precision of its parameters, with output in that of ``x``; add what its backward needs."""
    weight, bias = parameters
    wide = x.to(weight.dtype)
    width = [x.shape[-1]]
    if weight.ndim == 1:
        out, mean, inverse = torch.native_layer_norm(wide, width, weight, bias, eps)
    elif x.device.type not in _LOOPING:
        out, mean, inverse = torch.native_layer_norm(wide, width, None, None, eps)
        out = torch.addcmul(_spread(bias, x), out, _spread(weight, x))
    else:
        out, mean = torch.empty_like(wide), wide.new_empty(*x.shape[:-1], 1)
        inverse = torch.empty_like(mean)
        for k in range(len(x)):
            outs = {"out0": out[k : k + 1], "out1": mean[k : k + 1], "out2": inverse[k : k + 1]}
            _aten.native_layer_norm.out(wide[k : k + 1], width, weight[k], bias[k], eps, **outs)
    if arena is not None:
        mean, inverse = arena.hold(mean), arena.hold(inverse)
    return out.to(x.dtype), Normed(x, mean, inverse)


def pull_norm(
    grad: Tensor, seen: Normed, parameters: NormParameters, *, to_input: bool = True
) -> tuple[Tensor, NormParameters]:
    """Return the gradient to the input of a norm (unless ``to_input`` is False) and to its parameters."""
    weight, bias = parameters
    grad, x = grad.to(weight.dtype), seen.x.to(weight.dtype)
    width, mask = [x.shape[-1]], [to_input, True, True]
    pull = _aten.native_layer_norm_backward
    if weight.ndim == 1:
        to_x, to_weight, to_bias = pull(grad, x, width, seen.mean, seen.inverse, weight, bias, mask)
        return to_x, (to_weight, to_bias)
    if x.device.type not in _LOOPING:
        to_weight = ((x - seen.mean) * seen.inverse).mul_(grad).view(len(x), -1, *width).sum(1)
        to_bias = grad.view(len(x), -1, *width).sum(1)
        scaled = grad * _spread(weight, x)
        to_x = pull(scaled, x, width, seen.mean, seen.inverse, None, None, [to_input, False, False])[0]
        return to_x, (to_weight, to_bias)
    to_x, to_weight, to_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
    for k in range(len(x)):
        one = slice(k, k + 1)
        found = pull(grad[one], x[one], width, seen.mean[one], seen.inverse[one], weight[k], bias[k], mask)
        for target, piece in zip((to_x[one], to_weight[k], to_bias[k]), found, strict=True):
            if piece is not None:
                target.copy_(piece)
    return to_x, (to_weight, to_bias)


def _spread(parameter: Tensor, x: Tensor) -> Tensor:
    """Reshape a parameter of each image [n, w] to combine with all its tokens [n, ..., w]."""
    return parameter.view(len(x), *[1] * (x.ndim - 2), -1)


def attend(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    """Return the attention [n, T, w] of T tokens, queries [n, T, w], to all L tokens, keys and values [n, L, 2w]."""
    q, k, v = (part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in (q, *kv.chunk(2, dim=-1)))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def pull_attention(grad: Tensor, q: Tensor, kv: Tensor, heads: int, to_q: Tensor, to_kv: Tensor) -> None:
    """Write the gradient of ``attend`` to its queries, keys and values into ``to_q`` and ``to_kv``.

    Written by hand because a fused backward needs the forward's output too, which would have to be kept. On a CPU it
    takes a few images at a time, so that their scores stay in the cache.
    """
    parts = [slice(None)]
    if q.device.type in _LOOPING:
        group = max(1, _SCORES // (heads * q.shape[1] * kv.shape[1]))
        parts = [slice(first, first + group) for first in range(0, len(q), group)]
    for part in parts:
        k, v = kv[part].chunk(2, dim=-1)
        found = _pull_scores(*(_split_heads(x, heads) for x in (grad[part], q[part], k, v)))
        targets = (to_q[part], *to_kv[part].chunk(2, dim=-1))
        for target, x in zip(targets, found, strict=True):
            target.copy_(x.view(-1, heads, *x.shape[1:]).transpose(1, 2).flatten(2))


def _pull_scores(grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradient to queries [m, T, d], keys and values [m, L, d] of m heads."""
    scale = q.shape[-1] ** -0.5
    q = q * scale
    scores = torch.bmm(q, k.transpose(1, 2))
    shares = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    to_v = torch.bmm(shares.to(grad.dtype).transpose(1, 2), grad)
    to_shares = torch.bmm(grad, v.transpose(1, 2)).to(shares.dtype)
    to_scores = _aten._softmax_backward_data(to_shares, shares, -1, shares.dtype).to(q.dtype)
    return torch.bmm(to_scores, k).mul_(scale), torch.bmm(to_scores.transpose(1, 2), q), to_v


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Map [n, L, w] to [n * heads, L, w / heads], for a single image without a copy."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2).flatten(0, 1)


def project(x: Tensor, weight: Tensor, bias: Tensor, arena: Arena | None) -> Tensor:
    """Apply a linear layer [n, L, in] to [n, L, out], with its output in the arena if there is one."""
    if arena is None:
        return F.linear(x, weight, bias)
    out = arena.take(*x.shape[:2], len(weight))
    torch.addmm(bias, x.flatten(0, 1), weight.T, out=out.flatten(0, 1))
    return out


def activate_into(arena: Arena | None, x: Tensor, name: Activation) -> Tensor:
    """Apply the activation into memory lent by the arena, if there is one; unfolded QuickGELU has no such kernel."""
    if arena is None or name == "quick_gelu":
        return activate(x, name)
    if name == "silu":
        return cast(Tensor, _aten.silu.out(x, out=arena.lend(x)))
    return cast(Tensor, _aten.gelu.out(x, approximate="tanh" if name == "gelu_tanh" else "none", out=arena.lend(x)))


def pull_activation(grad: Tensor, x: Tensor, name: Activation) -> Tensor:
    """Return the gradient to the input of the activation; ``grad`` may be overwritten."""
    if name in ("silu", "quick_gelu"):
        x = x if name == "silu" else 1.702 * x
        return cast(Tensor, _aten.silu_backward.grad_input(grad, x, grad_input=grad))
    return cast(Tensor, _aten.gelu_backward(grad, x, approximate="tanh" if name == "gelu_tanh" else "none"))
