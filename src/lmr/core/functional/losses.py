"""Losses that two or more methods need: pure functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats of the softmax over the last axis, straight from logits [..., C] without an epsilon."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def average_by_class(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The classes that occur among ``labels`` [B], in order [K], and the mean of their ``features`` [B, D]: [K, D]."""
    present, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    member = F.one_hot(place, len(present)).T.to(features.dtype)
    return present, member @ features / counts.unsqueeze(1)


def project_on_text(means: Tensor, prototypes: Tensor) -> Tensor:
    """BATCLIP's L_pm: how far, on average, each class mean [K, D] reaches along its unit text prototype [K, D]."""
    return (means * prototypes).sum(1).mean()


def spread_classes(means: Tensor) -> Tensor:
    """BATCLIP's L_sp: 1 - cosine summed (not averaged) over all ordered pairs of different class means [K, D]."""
    unit = F.normalize(means, dim=1)
    return 2 * (1 - unit @ unit.T).triu(1).sum()


def bimodal_loss(features: Tensor, prototypes: Tensor, logits: Tensor) -> Tensor:
    """BATCLIP's objective L_ent - L_pm - L_sp of image features [B, D], unit prototypes [C, D] and logits [B, C].

    Pseudo-labels are the only hard decision; gradient flows through everything else.
    """
    present, means = average_by_class(features, logits.argmax(1))
    return entropy(logits).mean() - project_on_text(means, prototypes[present]) - spread_classes(means)
