"""Linear layers of the towers: oneDNN multiplies frozen ones on processors where torch's own product is slow."""

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

_FEWEST_ROWS = 100  # oneDNN is slower with fewer: it reorders the weights first


class Linear(nn.Linear):
    """A linear layer that is multiplied by ``multiply``."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return multiply(x, self.weight, self.bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``x @ weight.T + bias`` as ``F.linear`` does; a frozen layer may use oneDNN, which rounds in its own way.

    With MKL torch multiplies float32 matrices at half the rate on an AMD processor with AVX-512. The operator of oneDNN
    is the one that ``torch.compile`` writes into its graphs.
    """
    if (
        torch.compiler.is_compiling()  # as an ONNX file is written, too
        or x.device.type != "cpu"
        or not x.dtype == weight.dtype == torch.float32
        or x.ndim < 2
        or x.numel() < _FEWEST_ROWS * x.shape[-1]
        or torch.is_autocast_enabled("cpu")
        or (torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad))
        or not has_slow_products()
    ):
        return F.linear(x, weight, bias)
    out: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


@functools.cache
def has_slow_products() -> bool:
    """Return True on an AMD processor with AVX-512, where torch has oneDNN."""
    words = platform.processor()  # as Windows names it
    with suppress(OSError):
        words += Path("/proc/cpuinfo").read_text()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(wide and "AuthenticAMD" in words and hasattr(torch.ops.mkldnn, "_linear_pointwise"))


class _Product(torch.autograd.Function):
    """The product of a frozen layer, which keeps no activation."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return _call_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, change: Tensor) -> tuple[Tensor, None, None]:
        return _call_onednn(change, ctx.saved_tensors[0].t(), None), None, None


def _call_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
