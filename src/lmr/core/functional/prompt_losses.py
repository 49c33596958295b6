"""Penalties on the class prototypes that prompt-learning methods add to an entropy: pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def measure_dispersion(prototypes: Tensor) -> Tensor:
    """C-TPT's mean distance of unit prototypes [C, D] from their mean, which is not normalised again."""
    apart: Tensor = torch.linalg.vector_norm(prototypes - prototypes.mean(0), dim=1)
    return apart.mean()


def measure_overlap(prototypes: Tensor) -> Tensor:
    """O-TPT's penalty as its code computes it: the mean over the classes of |A_i| - 1, A the cosines of prototypes.

    The code maps row i of A to |A_i| e_i by a Householder reflection for each class, subtracts the identity and
    averages the lengths of the rows. A reflection is exact, so that this is all that is left of it.
    """
    lengths: Tensor = torch.linalg.vector_norm(prototypes @ prototypes.T, dim=1)
    return (lengths - 1).mean()


def measure_overlap_squared(prototypes: Tensor) -> Tensor:
    """O-TPT's penalty as its paper writes it: the squared Frobenius norm of A - I."""
    return (prototypes @ prototypes.T - torch.eye(len(prototypes)).to(prototypes)).square().sum()
