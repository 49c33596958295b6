"""Linear layers of the towers: oneDNN multiplies frozen ones, with weights that are laid out for it once.

With MKL torch multiplies float32 matrices at half the rate on an AMD processor with AVX-512. In bfloat16 it uses oneDNN
anyway, but lays the weights out again for every product. The two operators of oneDNN are those that ``torch.compile``
writes into its graphs.
"""

from __future__ import annotations

import functools
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

_FEWEST_ROWS = 100  # oneDNN is slower with fewer


class Linear(nn.Linear):
    """A linear layer that is multiplied by ``multiply``.

    While it is frozen it keeps a second copy of its weights, in the layout of oneDNN. The copy follows every change of
    the weights but those through ``weight.data``, which torch does not count.
    """

    _packed: tuple[Tensor, int, Tensor] | None = None  # the weights, their version, and they in oneDNN's layout

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        if not suits_onednn(x, self.weight, self.bias):
            return F.linear(x, self.weight, self.bias)
        return _multiply(x, self.weight, self.bias, self._pack())

    def _pack(self) -> Tensor | None:
        weight = self.weight
        if weight.requires_grad:
            return None
        if self._packed is None or not self._packed[0].is_set_to(weight) or self._packed[1] != weight._version:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
            self._packed = (weight.detach(), weight._version, packed)
        return self._packed[2]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_packed"}


def multiply(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``x @ weight.T + bias`` as ``F.linear`` does; a frozen layer may use oneDNN, whose rounding differs."""
    return _multiply(x, weight, bias) if suits_onednn(x, weight, bias) else F.linear(x, weight, bias)


def suits_onednn(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Return True if a product is faster by our call of oneDNN than by torch's own."""
    return not (
        torch.compiler.is_compiling()  # as an ONNX file is written, too
        or x.device.type != "cpu"
        or x.dtype != weight.dtype
        or x.ndim < 2
        or x.numel() < _FEWEST_ROWS * x.shape[-1]
        or torch.is_autocast_enabled("cpu")
        or (torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad))
        or not has_slow_products(x.dtype)
    )


@functools.cache
def has_slow_products(dtype: torch.dtype) -> bool:
    """Return True if torch is slow in a type: bfloat16 with AVX-512, and float32 with it on an AMD processor."""
    words = platform.processor()  # as Windows names it
    with suppress(OSError):
        words += Path("/proc/cpuinfo").read_text()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    slow = dtype == torch.bfloat16 or (dtype == torch.float32 and "AuthenticAMD" in words)
    return bool(wide and known and slow)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor, packed: Tensor | None = None) -> Tensor:
    out: Tensor = _Product.apply(x, weight, bias, packed)  # type: ignore[no-untyped-call]
    return out


class _Product(torch.autograd.Function):
    """The product of a frozen layer, which keeps no activation."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor, packed: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _call_onednn(x, weight if packed is None else packed, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, change: Tensor) -> tuple[Tensor, None, None, None]:
        return _call_onednn(change, ctx.saved_tensors[0].t(), None), None, None, None


def _call_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
