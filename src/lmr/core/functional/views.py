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
