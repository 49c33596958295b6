"""The mode of a few views where it is known; tests/methods/test_mta.py compares whole streams."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from lmr.methods.mta import find_mode


def test_single_view_is_its_own_mode() -> None:
    z = F.normalize(torch.randn(1, 8), dim=1)
    assert torch.equal(find_mode(z, torch.tensor([[0.5, 0.5]])), z[0])


def test_equal_views_are_their_own_mode() -> None:
    for dtype in (torch.float32, torch.float64):
        z = F.normalize(torch.randn(1, 8, dtype=dtype), dim=1).expand(6, -1)
        torch.testing.assert_close(find_mode(z, torch.full((6, 2), 0.5, dtype=dtype)), z[0])


def test_mode_leaves_an_outlier_behind() -> None:
    generator = torch.Generator().manual_seed(0)
    centre = F.normalize(torch.randn(16, generator=generator, dtype=torch.float64), dim=0)
    crowd = F.normalize(centre + 0.05 * torch.randn(20, 16, generator=generator, dtype=torch.float64), dim=1)
    outlier = F.normalize(centre + 0.12 * torch.randn(1, 16, generator=generator, dtype=torch.float64), dim=1)
    z = torch.cat([outlier, crowd])  # the image itself is the outlier
    shares = torch.tensor([[0.1, 0.9]] + [[0.9, 0.1]] * 20, dtype=torch.float64)
    mode = find_mode(z, shares)
    assert mode @ centre > 0.99 > outlier[0] @ centre
    torch.testing.assert_close(mode.norm(), torch.ones((), dtype=torch.float64))
