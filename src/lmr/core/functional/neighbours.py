"""Which images of a batch are near each other: a pure function."""

from __future__ import annotations

import torch
from torch import Tensor


def link_nearest(likeness: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Directed links [N, N] of every image to its ``count`` likeliest others, or to all where there are fewer.

    The weight of a link is that in ``weights`` [N, N], or 1. No image is linked to itself.
    """
    others = likeness.clone().fill_diagonal_(-torch.inf)
    near = others.topk(min(count, len(likeness) - 1), 1).indices
    links = torch.zeros_like(likeness)
    return links.scatter(1, near, 1.0 if weights is None else weights.gather(1, near))
