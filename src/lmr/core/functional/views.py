"""What methods compute from several views of an image: pure functions. V views, C classes, features of size D."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmr.core.functional.losses import entropy


def rank_confident(logits: Tensor) -> Tensor:
    """The views [..., V] of logits [..., V, C] in the order of rising entropy; equal ones stay in their order."""
    return entropy(logits).sort(dim=-1, stable=True).indices


def count_kept(views: int, share: float) -> int:
    """How many of so many views a share of them is: rounded down, but one at least."""
    return max(1, int(views * share))


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy [...] of the mean of the softmax over the views of logits [..., V, C], in log space.

    As in the code of MEMO and TPT, a mean probability of 0 counts as the smallest number: 0 log 0 is 0.
    """
    log_mean = logits.log_softmax(-1).logsumexp(-2) - math.log(logits.shape[-2])
    log_mean = log_mean.clamp(min=torch.finfo(log_mean.dtype).min)
    return -(log_mean.exp() * log_mean).sum(-1)


def weigh_views(features: Tensor, neighbours: int, temperature: float) -> Tensor:
    """R-TPT's weights [..., V] of unit features [..., V, D]: views that agree with their nearest views weigh most.

    The softmax over the views of r / temperature; r is the mean of a view's largest cosines with others, itself
    excluded. A single view has the weight 1.
    """
    views = features.shape[-2]
    if views == 1:
        return features.new_ones(features.shape[:-1])
    cosines = features @ features.transpose(-1, -2)
    itself = torch.eye(views, dtype=torch.bool, device=features.device)
    near = cosines.masked_fill(itself, -math.inf).topk(min(neighbours, views - 1), dim=-1).values.mean(-1)
    return ((near - near.amax(-1, keepdim=True)) / temperature).softmax(-1)


def count_votes(logits: Tensor, kept: int) -> Tensor:
    """ZERO's answer [C] to the logits [V, C] of one image: the votes of its ``kept`` most confident views.

    Where classes tie for the most votes, the other views are asked in the order of rising entropy: the first that votes
    for a tied class decides. If none does, it is the tied class with the largest logit in the first of them. Without
    other views the tie stays.
    """
    order, classes = rank_confident(logits), logits.shape[-1]
    chosen = logits.argmax(-1)[order]
    votes = torch.bincount(chosen[:kept], minlength=classes).to(logits.dtype)
    tied = votes == votes.amax()
    if int(tied.sum()) > 1 and kept < len(order):
        rest = chosen[kept:]
        deciding = tied[rest].nonzero().flatten()
        first = logits[order[kept]].masked_fill(~tied, -math.inf)
        votes[rest[deciding[0]] if len(deciding) else first.argmax()] += 1
    return votes
