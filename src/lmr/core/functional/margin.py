"""The equations of LMR as pure functions, with their numbers in the paper. B samples, C classes, A streams."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.streams import Streams

FEW_CLASSES = 30  # below, the published values for ten classes suit better than those for 100; see docs/choosing.md
TEN_CLASSES = {"gamma0": 0.3, "beta": 3.0}


def find_protected(cosines: Tensor, delta: float, positives: str = "gap") -> Tensor:
    """Return the protected set P (eq. 5), the classes within ``delta`` of the best cosine: bool [B, C].

    With "top1" it is the best class alone.
    """
    top = cosines.argmax(1, keepdim=True)
    only_top = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, top, True)
    return only_top if positives == "top1" else only_top | (cosines >= cosines.gather(1, top) - delta)


def measure_margin(
    logits: Tensor, cosines: Tensor, protected: Tensor, negatives: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the margin s+ - s- [B] of every sample (eqs. 6-8), and its negatives: bool [B, C].

    Gradient flows through the logits only. A sample without a negative (every class is protected) has margin 0 and no
    gradient; give it no weight.
    """
    log_q = logits.detach().log_softmax(1)
    total = (log_q.exp() * protected).sum(1, keepdim=True)
    positive = _masked_logsumexp(logits + log_q - (total + eps).log(), protected)  # eqs. 6, 7
    outside = cosines.detach().masked_fill(protected, -math.inf)
    hardest, where = outside.topk(min(negatives, cosines.shape[1]), dim=1)
    real = hardest > -math.inf
    count = real.sum(1)
    negative = _masked_logsumexp(logits.gather(1, where), real) - count.clamp(min=1).to(logits.dtype).log()  # eq. 8
    margin = torch.where(count > 0, positive - negative, 0.0)
    return margin, torch.zeros_like(protected).scatter_(1, where, real)


def confidence_weight(logits: Tensor, tau: float) -> Tensor:
    """Return the weight r [B] of each sample (eq. 10): 0 below confidence ``tau``, 1 at certainty; no gradient."""
    confidence = logits.detach().softmax(1).amax(1)
    return torch.where(confidence >= tau, (confidence - tau) / (1 - tau), 0.0)


def adapt_margin(
    mass: Tensor, weight: Tensor, top: Tensor, streams: Streams, gamma0: float, beta: float, eps: float
) -> Tensor:
    """Return the target margin [B] of each sample by its class's share of the mass [A, C] (eqs. 13, 14).

    The sample's own weight is left out of the mass. A class with exactly its fair share 1/C gets ``gamma0``; a class
    with more mass gets a smaller target (negative feedback).
    """
    own = (mass[streams.index, top] - weight).clamp(min=0)
    rest = (streams.repeat(mass.sum(1)) - weight).clamp(min=0)
    share = own / (rest + eps)  # eq. 13
    return gamma0 - beta * math.log(mass.shape[1]) - beta * (share + eps).log()  # eq. 14


def restoration_loss(
    margin: Tensor, target: Tensor, weight: Tensor, streams: Streams, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the loss [A] of each stream (eqs. 9, 11), and its gradient [B] along the margins.

    The loss of a sample is softplus(target - margin); its gradient is -sigmoid(target - margin).
    """
    total = streams.sum(weight) + eps
    loss = streams.sum(-weight * F.logsigmoid(margin - target)) / total  # torch's softplus is a line beyond 20
    return loss, -weight * (target - margin).sigmoid() / streams.repeat(total)


def correct_bias(
    bias: Tensor,
    running: Tensor,
    seen: Tensor,
    mean: Tensor,
    eta: float | Tensor,
    mu: float | Tensor,
    clip: float,
    eps: float,
    prior: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return bias and running prediction [A, C] after a batch with the mean prediction ``mean`` [A, C] (eqs. 16, 17).

    ``seen`` [A] is false for streams without a running prediction yet, which this batch starts. ``eta`` and ``mu`` are
    numbers, or [A, 1]. The step is centred, which changes no difference between classes, then clipped. The published
    method drives the running prediction to equal shares of all classes; with ``prior`` [A, C] or [C], to these shares.
    """
    kept, added = (mu.to(mean.dtype), (1 - mu).to(mean.dtype)) if isinstance(mu, Tensor) else (mu, 1 - mu)
    running = torch.where(seen.unsqueeze(1), kept * running + added * mean, mean)  # eq. 16
    gain = eta.to(mean.dtype) if isinstance(eta, Tensor) else eta
    excess = (running + eps).log() if prior is None else (running + eps).log() - prior.log()
    moved = bias - gain * excess  # eq. 17
    return (moved - moved.mean(1, keepdim=True)).clamp(-clip, clip), running


def _masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """Return the logsumexp over the last axis where ``mask`` is true; finite with zero gradient where it never is."""
    return values.masked_fill(~mask, torch.finfo(values.dtype).min / 4).logsumexp(-1)
