"""Class shares of a stream: given by a person, or counted."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from lmr.core.errors import LmrError

Prior = Literal["uniform"] | tuple[float, ...]
PSEUDO_IMAGES = 8.0  # spread evenly over the classes and added to counts: no class has a share of 0


def parse_prior(prior: Prior, like: Tensor) -> Tensor:
    """Return the class shares [C] that ``prior`` stands for, for prototypes ``like`` [C, D].

    Given numbers are divided by their sum. A share of 0 becomes a thousandth of an even share: a class that was never
    seen may still come.
    """
    classes = len(like)
    if prior == "uniform":
        return like.new_full((classes,), 1 / classes)
    assert isinstance(prior, tuple)
    if len(prior) != classes:
        raise LmrError(f"Expected a share for each of the {classes} classes as the prior, got {len(prior)} numbers.")
    if not all(0 <= share < math.inf for share in prior) or not sum(prior) > 0:
        raise LmrError(f"Expected shares of at least 0 with a positive sum as the prior, got {prior!r}.")
    shares = torch.tensor(prior, dtype=torch.float64) / sum(prior)
    shares = shares.clamp(min=1e-3 / classes)
    return (shares / shares.sum()).to(like)


def share_counts(counts: Tensor) -> Tensor:
    """Return class shares [A, C] from counts [A, C] of labels and the pseudo-images."""
    counts = counts + PSEUDO_IMAGES / counts.shape[1]
    return counts / counts.sum(1, keepdim=True)
