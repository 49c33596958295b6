"""LMR as a plain loop."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.bench.cost.plain.loop import PlainLoop

_EPS = 1e-6


class PlainLMR(PlainLoop):
    """Local Margin Restoration with the paper's defaults: protected and adaptive margin, bias correction."""

    lr = 1e-3

    def reset(self) -> None:
        """Forget the stream."""
        super().reset()
        self.mass = torch.zeros(len(self.prototypes))
        self.bias = torch.zeros(len(self.prototypes))
        self.running: Tensor | None = None

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Logits [B, C] after the step with the bias of the batches before, and the share of samples past the gate."""
        logits = self.logits(images)
        loss, weight = self.judge(logits)
        if weight.sum() > 0:
            self.descend(loss)
            with torch.no_grad():
                logits = self.logits(images)
        answer = logits.detach() + self.bias
        mean = answer.softmax(1).mean(0)
        self.running = mean if self.running is None else 0.8 * self.running + 0.2 * mean
        moved = self.bias - 0.05 * torch.log(self.running + _EPS)
        self.bias = (moved - moved.mean()).clamp(-2, 2)
        return answer, {"gate_share": (weight > 0).double().mean().item()}

    def judge(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the gate weight [B] of its samples."""
        fixed = logits.detach()
        classes, cosines, q = fixed.shape[1], fixed / self.logit_scale, fixed.softmax(1)
        confidence, label = q.max(1)
        protected = cosines >= cosines.max(1, keepdim=True).values - 0.03
        alpha = q * protected / ((q * protected).sum(1, keepdim=True) + _EPS)
        positive = torch.logsumexp(logits + torch.log(alpha), dim=1)  # log 0 outside the protected set
        hardest = logits.masked_fill(protected, -math.inf).topk(min(5, classes), dim=1).values
        count = (hardest > -math.inf).sum(1)
        weight = torch.where(confidence >= 0.3, (confidence - 0.3) / 0.7, 0.0) * (count > 0)
        self.mass = self.mass.index_add(0, label, weight)
        share = (self.mass[label] - weight).clamp(min=0) / ((self.mass.sum() - weight).clamp(min=0) + _EPS)
        target = 4.0 - math.log(classes) - torch.log(share + _EPS)
        kept = weight > 0  # a sample without a negative has no margin
        negative = torch.logsumexp(hardest[kept], dim=1) - torch.log(count[kept])
        lost = F.softplus(target[kept] - (positive[kept] - negative))
        return (weight[kept] * lost).sum() / (weight.sum() + _EPS), weight
