"""Protected margin and adaptive margin of LMR: pure functions of logits, vectorised over samples and classes.

Shapes: B samples, C classes, A streams in the batch, ``index`` [B] the stream of each sample. Numbers in brackets are
the steps of section 2 of the specification and the equations of the paper they implement.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.functional.by_stream import sum_by_stream


class LocalMargin(NamedTuple):
    """The margin of every sample and the two sets it separates."""

    margin: Tensor  # [B], gradient flows through the logits only
    protected: Tensor  # bool [B, C]
    negatives: Tensor  # bool [B, C]


def protect(cosines: Tensor, delta: float, positives: str = "gap") -> Tensor:
    """[1] The classes within ``delta`` of the best cosine (or the best alone with "top1"): bool [B, C]."""
    top = cosines.argmax(1, keepdim=True)
    only_top = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, top, True)
    return only_top if positives == "top1" else only_top | (cosines >= cosines.gather(1, top) - delta)


def measure_margin(
    logits: Tensor, cosines: Tensor, delta: float, negatives: int, eps: float, positives: str = "gap"
) -> LocalMargin:
    """[1-3, 6] Margin between the soft maximum of the protected set and the mean of the hardest negatives outside it.

    A sample without a negative (every class protected) gets margin 0 and no gradient; the caller gives it no weight.
    """
    fixed = cosines.detach()
    protected = protect(fixed, delta, positives)

    log_q = logits.detach().log_softmax(1)
    total = (log_q.exp() * protected).sum(1, keepdim=True)
    positive = _masked_logsumexp(logits + log_q - (total + eps).log(), protected)

    outside = fixed.masked_fill(protected, -math.inf)
    hardest, where = outside.topk(min(negatives, cosines.shape[1]), dim=1)
    real = hardest > -math.inf
    count = real.sum(1)
    negative = _masked_logsumexp(logits.gather(1, where), real) - count.clamp(min=1).to(logits.dtype).log()

    margin = torch.where(count > 0, positive - negative, 0.0)
    chosen = torch.zeros_like(protected).scatter_(1, where, real)
    return LocalMargin(margin, protected, chosen)


def gate(logits: Tensor, tau: float) -> Tensor:
    """[4] Confidence weight, 0 below ``tau`` and 1 at certainty: [B], detached."""
    confidence = logits.detach().softmax(1).amax(1)
    return torch.where(confidence >= tau, (confidence - tau) / (1 - tau), 0.0)


def count_mass(weight: Tensor, top: Tensor, classes: int, index: Tensor, streams: int) -> Tensor:
    """[5] Sum of the gate weights of every predicted class in this batch: [A, C]."""
    return sum_by_stream(F.one_hot(top, classes) * weight.unsqueeze(1), index, streams)


def adapt_margin(
    mass: Tensor, weight: Tensor, top: Tensor, index: Tensor, gamma0: float, beta: float, eps: float
) -> Tensor:
    """[5] Target margin [B] of every sample from its class's share of the running mass [A, C] without its own weight.

    A class with exactly its fair share 1/C gets ``gamma0``; more mass, smaller margin (negative feedback).
    """
    own = (mass[index, top] - weight).clamp(min=0)
    rest = (mass.sum(1)[index] - weight).clamp(min=0)
    share = own / (rest + eps)
    return gamma0 - beta * math.log(mass.shape[1]) - beta * (share + eps).log()


def restoration_loss(margin: Tensor, target: Tensor, weight: Tensor, index: Tensor, streams: int, eps: float) -> Tensor:
    """[6] Softplus of the missing margin, averaged with the gate weights inside every stream: [A]."""
    lost = -weight * F.logsigmoid(margin - target)  # a softplus; torch's own is a straight line beyond 20
    return sum_by_stream(lost, index, streams) / (sum_by_stream(weight, index, streams) + eps)


def _masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """logsumexp over the last axis where ``mask`` holds; finite with zero gradient where it never holds."""
    floor = torch.finfo(values.dtype).min / 4
    return values.masked_fill(~mask, floor).logsumexp(-1)
