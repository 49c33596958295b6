"""Gradients: pulled back through a graph, and the first half of a sharpness-aware step (Foret et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor


def pull_back(output: Tensor, source: Tensor, slope: Tensor, *, keep_graph: bool = False) -> Tensor:
    """The gradient along ``source`` of ``(output * slope).sum()``, where ``slope`` is constant.

    ``torch.autograd.grad(output, source, slope)`` gives the same bits, but its first call imports the symbolic shapes
    of torch and with them sympy: about a second and 35 MB in every process that takes one step.
    """
    with torch.enable_grad():
        total = (output * slope).sum()
    return torch.autograd.grad(total, source, retain_graph=keep_graph)[0]


def climb(rows: Tensor, gradient: Tensor, rho: float) -> Tensor:
    """Every row [A, P] moved by ``rho`` uphill along its own gradient [A, P]; a gradient of 0 moves nothing."""
    length: Tensor = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return rows + rho / (length + 1e-12) * gradient
