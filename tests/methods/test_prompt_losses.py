"""Penalties on prototypes, against loops."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from lmr.methods.ctpt import measure_dispersion
from lmr.methods.otpt import measure_overlap, measure_overlap_squared

TEXTS = F.normalize(torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)


def test_dispersion_is_the_mean_distance_from_the_mean() -> None:
    mean = sum(TEXTS) / 6
    expected = sum(float((text - mean).norm()) for text in TEXTS) / 6
    assert abs(measure_dispersion(TEXTS).item() - expected) < 1e-12


def test_dispersion_of_equal_prototypes_has_a_finite_gradient() -> None:
    same = TEXTS[:1].repeat(4, 1).requires_grad_()
    measure_dispersion(same).backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()


def test_overlap_is_zero_for_orthogonal_prototypes() -> None:
    axes = torch.eye(4, 7, dtype=torch.float64)
    assert measure_overlap(axes).item() == measure_overlap_squared(axes).item() == 0


def test_overlaps_are_those_of_loops() -> None:
    cosines = [[float(a @ b) for b in TEXTS] for a in TEXTS]
    rows = sum(sum(value**2 for value in row) ** 0.5 - 1 for row in cosines) / 6
    squares = sum((value - float(i == j)) ** 2 for i, row in enumerate(cosines) for j, value in enumerate(row))
    assert abs(measure_overlap(TEXTS).item() - rows) < 1e-12
    assert abs(measure_overlap_squared(TEXTS).item() - squares) < 1e-12
