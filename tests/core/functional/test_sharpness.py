"""The climb of a sharpness-aware step."""

from __future__ import annotations

import torch

from lmr.core.functional.sharpness import climb


def test_every_row_moves_by_rho_along_its_own_gradient() -> None:
    rows, gradient = torch.zeros(3, 2), torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -1e-3]])
    assert torch.allclose(climb(rows, gradient, 0.5), torch.tensor([[0.3, 0.4], [0.0, 0.0], [0.0, -0.5]]))
