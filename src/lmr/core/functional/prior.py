"""Class shares of a stream: given by a person, or counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.spec import list_unknown, simplify_name

Prior = Literal["uniform"] | tuple[float, ...]
PSEUDO_IMAGES = 8.0  # spread evenly over the classes and added to counts: no class has a share of 0
ROUNDING = 0.01  # by which the sum of shares that people write down may differ from 1


def share_names(shares: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    """Return the shares of all classes ``names`` from those of some; the other classes share the rest evenly.

    Names are compared without regard to case and underscores.
    """
    known = [simplify_name(name) for name in names]
    given: dict[int, float] = {}
    if unknown := [str(name) for name in shares if simplify_name(str(name)) not in known]:
        few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise LmrError(f"There is no class {list_unknown(unknown, names)} to give a share. The classes are: {few}.")
    for name, share in shares.items():
        found = [place for place, one in enumerate(known) if one == simplify_name(str(name))]
        if len(found) > 1 or found[0] in given:
            raise LmrError(
                f"The name {name!r} stands for two classes, or has two shares; give the shares of all classes in order."
            )
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise LmrError(f"Expected a share from 0 to 1 for the class {name!r}, got {share!r}.")
        given[found[0]] = float(share)
    total, others = sum(given.values()), len(names) - len(given)
    if total > 1 + ROUNDING or (not others and total < 1 - ROUNDING):
        most = "at most 1" if others else "1"
        raise LmrError(f"Expected shares with a sum of {most}, got {total:g}; give each class its part of all images.")
    rest = round(max(0.0, 1 - total) / others, 12) if others else 0.0
    return tuple(given.get(place, rest) for place in range(len(names)))


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
    if not all(0 <= share < math.inf for share in prior) or not any(prior):
        raise LmrError(f"Expected shares of at least 0 with a positive sum as the prior, got {prior!r}.")
    shares = torch.tensor(prior, dtype=torch.float64) / max(prior)  # whose sum is finite
    shares = (shares / shares.sum()).clamp(min=1e-3 / classes)
    return (shares / shares.sum()).to(like)


def share_counts(counts: Tensor) -> Tensor:
    """Return class shares [A, C] from counts [A, C] of labels and the pseudo-images."""
    counts = counts + PSEUDO_IMAGES / counts.shape[1]
    return counts / counts.sum(1, keepdim=True)
