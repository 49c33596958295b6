"""The first half of a sharpness-aware step (Foret et al. 2021): a pure function."""

from __future__ import annotations

import torch
from torch import Tensor


def climb(rows: Tensor, gradient: Tensor, rho: float) -> Tensor:
    """Every row [A, P] moved by ``rho`` uphill along its own gradient [A, P]; a gradient of 0 moves nothing."""
    length: Tensor = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return rows + rho / (length + 1e-12) * gradient
