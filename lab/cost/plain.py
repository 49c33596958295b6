"""The obvious alternative: methods as loops on a transformers model with autograd and torch.optim.

The class of a method is named ``Plain`` followed by the method's label. The loops are written from the equations and
share no code with the library's own methods, so that comparing time and memory is also an independent check of the
answers.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_PREFIX = "Plain"
_EPS = 1e-6


class PlainLoop:
    """A transformers model, class prototypes and an Adam optimiser on the model's LayerNorm parameters."""

    lr: ClassVar[float] = 1e-3

    def __init__(self, model: nn.Module, prototypes: Tensor, logit_scale: float = 100.0) -> None:
        self.model, self.prototypes, self.logit_scale = model, prototypes, logit_scale
        model.requires_grad_(False)
        norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
        self.parameters = [parameter.requires_grad_() for norm in norms for parameter in norm.parameters()]
        self.start = [parameter.detach().clone() for parameter in self.parameters]
        self.reset()

    def reset(self) -> None:
        """Restore the original norms and start with a new optimiser."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.start, strict=True):
                parameter.copy_(value)
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.lr)

    def logits(self, images: Tensor) -> Tensor:
        """Return logits [B, C] with the present norms."""
        features = F.normalize(self.model(pixel_values=images).image_embeds, dim=-1)
        return self.logit_scale * features @ self.prototypes.T

    def descend(self, loss: Tensor) -> None:
        """Take one step of the optimiser."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, C] without adapting."""
        with torch.no_grad():
            return self.logits(images)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Adapt on a batch; return logits [B, C] and what happened. Without a method nothing adapts."""
        return self.forward(images), {}


class PlainLMR(PlainLoop):
    """Local Margin Restoration with the paper's defaults: protected and adaptive margin, bias correction."""

    lr = 1e-3

    def reset(self) -> None:
        """Restore the state before the stream."""
        super().reset()
        self.mass = torch.zeros(len(self.prototypes))
        self.bias = torch.zeros(len(self.prototypes))
        self.running: Tensor | None = None

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return logits [B, C] after the step, with the bias before it, and the share of selected samples."""
        logits = self.logits(images)
        loss, weight = self.measure_loss(logits)
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

    def measure_loss(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch and the gate weight [B] of its samples."""
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


class PlainTENT(PlainLoop):
    """Entropy minimisation; the answer is the one before the step."""

    lr = 2.5e-4

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return logits [B, C] and what happened."""
        logits = self.logits(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        self.descend(loss)
        return logits.detach(), {}


def list_plain_loops() -> dict[str, type[PlainLoop]]:
    """Return the plain loops by the lower-case labels of their methods, in alphabetical order."""
    loops = sorted(PlainLoop.__subclasses__(), key=lambda loop: loop.__name__)
    return {loop.__name__.removeprefix(_PREFIX).lower(): loop for loop in loops}
