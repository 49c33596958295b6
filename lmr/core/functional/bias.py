"""Bias correction of LMR: a pure function (bias, running prediction, corrected logits) to the next two."""

from __future__ import annotations

import torch
from torch import Tensor


def correct_bias(
    bias: Tensor, running: Tensor, seen: Tensor, mean: Tensor, eta: float, mu: float, clip: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Lower the classes that hold too much predictive mass (step 9 of the specification, eq. bias_update of the paper).

    bias, running [A, C]; ``mean`` [A, C] the mean softmax of this batch's corrected logits; ``seen`` bool [A], whether
    the stream has a running prediction yet (its first batch starts it). The step is centred, which changes no
    difference between classes, then clipped element by element to [-clip, clip]. Returns the new (bias, running).
    """
    running = torch.where(seen.unsqueeze(1), mu * running + (1 - mu) * mean, mean)
    moved = bias - eta * (running + eps).log()
    return (moved - moved.mean(1, keepdim=True)).clamp(-clip, clip), running
