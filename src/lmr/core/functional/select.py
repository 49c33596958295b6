"""Choices among views, images and entries of a memory: pure functions that two or more methods need."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.functional.losses import entropy


def rank_confident(logits: Tensor) -> Tensor:
    """Return the views [..., V] of logits [..., V, C] in the order of rising entropy; equal ones keep their order."""
    return entropy(logits).sort(dim=-1, stable=True).indices


def count_kept(views: int, share: float) -> int:
    """Return the number of views in a share of them: rounded down, at least one."""
    return max(1, int(views * share))


def link_nearest(likeness: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Return directed links [N, N] of every image to its ``count`` likeliest others, or to all where there are fewer.

    The weight of a link is that in ``weights`` [N, N], or 1. No image is linked to itself.
    """
    others = likeness.clone().fill_diagonal_(-torch.inf)
    near = others.topk(min(count, len(likeness) - 1), 1).indices
    links = torch.zeros_like(likeness)
    return links.scatter(1, near, 1.0 if weights is None else weights.gather(1, near))


def find_place(scores: Tensor, score: float) -> int | None:
    """Return the position in a class [n] that an entry takes: that of the lowest score, if the entry's is higher.

    A free place has a score below all others, so that the places of a class are filled in their order first.
    """
    lowest = int(scores.argmin()) if len(scores) else 0
    return lowest if len(scores) and score > float(scores[lowest]) else None
