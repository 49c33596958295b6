"""Losses that two or more methods need: pure functions.

B images with unit features [B, D], C classes; for views of an image the axis before the last is the view.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

TEMPERATURE = 0.01  # of the targets, a constant of the authors' code whatever the model's scale


def entropy(logits: Tensor) -> Tensor:
    """Return the Shannon entropy, in nats, of the softmax over the last axis of logits [..., C]."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def average_by_class(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes among ``labels`` [B], in order [K], and the mean of their ``features`` [B, D]: [K, D]."""
    present, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    member = F.one_hot(place, len(present)).T.to(features.dtype)
    return present, member @ features / counts.unsqueeze(1)


def project_on_text(means: Tensor, prototypes: Tensor) -> Tensor:
    """Return BATCLIP's L_pm: the mean projection of class means [K, D] on their unit text prototypes [K, D]."""
    return (means * prototypes).sum(1).mean()


def spread_classes(means: Tensor) -> Tensor:
    """Return BATCLIP's L_sp: 1 - cosine, summed over all ordered pairs of different class means [K, D]."""
    unit = F.normalize(means, dim=1)
    return 2 * (1 - unit @ unit.T).triu(1).sum()


def bimodal_loss(features: Tensor, prototypes: Tensor, logits: Tensor) -> Tensor:
    """Return BATCLIP's objective L_ent - L_pm - L_sp of features [B, D], unit prototypes [C, D] and logits [B, C].

    Pseudo-labels are the only hard decision; gradient flows through everything else.
    """
    present, means = average_by_class(features, logits.argmax(1))
    return entropy(logits).mean() - project_on_text(means, prototypes[present]) - spread_classes(means)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Return the entropy [...] of the mean of the softmax over the views of logits [..., V, C], in log space.

    As in the code of MEMO and TPT, a mean probability of 0 counts as the smallest number: 0 log 0 is 0.
    """
    log_mean = logits.log_softmax(-1).logsumexp(-2) - math.log(logits.shape[-2])
    log_mean = log_mean.clamp(min=torch.finfo(log_mean.dtype).min)
    return -(log_mean.exp() * log_mean).sum(-1)


def likelihood_ratio(logits: Tensor, largest: float = 0.99, eps: float = 1e-5) -> Tensor:
    """Return the soft likelihood ratio of logits [..., C] (Mummadi et al. 2021): -sum of q log(q / (1 - q) + eps).

    q are the probabilities, at most ``largest`` and not normalised again; no gradient flows through those at the limit.
    """
    q = logits.softmax(-1).clamp(max=largest)
    return -(q * (q / (1 - q) + eps).log()).sum(-1)


def symmetric_cross_entropy(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean of both cross-entropies between the softmax of logits [..., C]; gradient flows through both."""
    log_p, log_q = one.log_softmax(-1), other.log_softmax(-1)
    return -(log_p.exp() * log_q + log_q.exp() * log_p).sum(-1) / 2


def match_captions(features: Tensor, captions: Tensor, scale: float) -> Tensor:
    """Return the cross-entropy of image-to-caption logits with the likeness of images and captions (Hakim et al. 2025).

    The target is softmax over rows of (Z Z' + U U') / 2 / 0.01. As in the authors' code it is used transposed, so its
    rows need not add up to 1, and gradient flows through it. Returns the mean over the images.
    """
    likeness = (features @ features.T + captions @ captions.T) / 2
    target = (likeness / TEMPERATURE).softmax(1)
    return -(target.T * (scale * features @ captions.T).log_softmax(1)).sum(1).mean()


def follow_labels(features: Tensor, prototypes: Tensor) -> Tensor:
    """Return the prototype [B, D] of the nearest class of every feature [B, D]; no gradient flows to the choice."""
    return prototypes[torch.argmax(features.detach() @ prototypes.T, 1)]
