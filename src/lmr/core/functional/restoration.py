"""The restoration step of LMR: what it sees of each sample, and what the batch makes of it. Pure functions.

Shapes as in margin.py. A sample is looked at without the rest of its batch, so that a batch can be looked at in parts;
only the weighing needs all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lmr.core.functional.margin import adapt_margin, count_mass, gate, measure_margin, restoration_loss


class MarginLook(NamedTuple):
    """What is known of every sample before the step, each without the rest of the batch."""

    margin: Tensor  # [B], gradient flows to the cosines
    passes: Tensor  # whether it passes the gate: bool [B]
    logits: Tensor  # [B, C]
    weight: Tensor  # of the gate: [B]
    protected: Tensor  # size of the set: [B]
    top: Tensor  # predicted class: [B]


class WeighedBatch(NamedTuple):
    """What a batch teaches."""

    mass: Tensor  # with this batch: [A, C]
    loss: Tensor  # of every stream: [A]
    slope: Tensor  # of its stream's loss along every margin: [B]


def look_at_margins(
    logits: Tensor, cosines: Tensor, delta: float, negatives: int, tau: float, eps: float, positives: str
) -> MarginLook:
    """Margin and gate of every sample; one without a negative has no weight."""
    local = measure_margin(logits, cosines, delta, negatives, eps, positives)
    weight = gate(logits, tau) * local.negatives.any(1)
    return MarginLook(local.margin, weight > 0, logits, weight, local.protected.sum(1), cosines.detach().argmax(1))


def weigh_margins(
    look: MarginLook, index: Tensor, mass: Tensor, gamma0: float, beta: float, eps: float, adaptive: bool = True
) -> WeighedBatch:
    """Loss of a batch in streams with the ``mass`` [A, C] before it; the target is ``gamma0`` unless ``adaptive``."""
    margin, weight = look.margin.requires_grad_(), look.weight
    mass = mass + count_mass(weight, look.top, mass.shape[1], index, len(mass))
    target = torch.full_like(weight, gamma0)
    if adaptive:
        target = adapt_margin(mass, weight, look.top, index, gamma0, beta, eps)
    with torch.enable_grad():
        loss = restoration_loss(margin, target, weight, index, len(mass), eps)
        (slope,) = torch.autograd.grad(loss.sum(), margin)
    return WeighedBatch(mass, loss.detach(), slope)
