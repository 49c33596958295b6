"""Bias correction of LMR: a pure function (bias, running prediction, corrected logits) to the next two."""

from __future__ import annotations

import torch
from torch import Tensor


def correct_bias(
    bias: Tensor,
    running: Tensor,
    seen: Tensor,
    mean: Tensor,
    eta: float | Tensor,
    mu: float | Tensor,
    clip: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Lower the classes that hold too much predictive mass (step 9 of the specification, eq. bias_update of the paper).

    bias, running [A, C]; ``mean`` [A, C] the mean softmax of this batch's corrected logits; ``seen`` bool [A], whether
    the stream has a running prediction yet (its first batch starts it). ``eta`` and ``mu`` are numbers, or [A, 1] with
    those of each stream. The step is centred, which changes no difference between classes, then clipped element by
    element to [-clip, clip]. Returns the new (bias, running).
    """
    kept, added = (mu.to(mean.dtype), (1 - mu).to(mean.dtype)) if isinstance(mu, Tensor) else (mu, 1 - mu)
    running = torch.where(seen.unsqueeze(1), kept * running + added * mean, mean)
    gain = eta.to(mean.dtype) if isinstance(eta, Tensor) else eta
    moved = bias - gain * (running + eps).log()
    return (moved - moved.mean(1, keepdim=True)).clamp(-clip, clip), running
