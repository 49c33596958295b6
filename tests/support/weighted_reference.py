"""One stream of ROID in float64, sample by sample, from the equations; CMF's reference changes its last step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import norm_reference as plain

SCALE = 20.0


def change(images: Tensor, number: int) -> Tensor:
    """An augmentation that can be repeated: it depends on the number of the batch."""
    return images.flip(-1) + 0.1 * torch.sin(2 * images + number)


def scale_to_unit(values: list[float]) -> list[float]:
    return [(value - min(values)) / (max(values) - min(values)) for value in values]


class Reference(plain.NormReference):
    """ROID with torch's own optimisers; ``merge`` is its weight ensembling."""

    def __init__(
        self,
        lr: float = 1e-3,
        optimizer: str = "adam",
        weighting: bool = True,
        consistency: bool = True,
        prior_correction: bool = True,
        batch: int | None = None,
        momentum_source: float = 0.99,
    ) -> None:
        super().__init__(SCALE)
        self.weighting, self.consistency, self.prior_correction = weighting, consistency, prior_correction
        self.batch, self.momentum_source, self.number = batch, momentum_source, 0
        self.mean = torch.full((plain.CLASSES,), 1 / plain.CLASSES, dtype=torch.float64)
        sgd = torch.optim.SGD(self.leaves, lr=lr, momentum=0.9, nesterov=True)
        self.optimizer = sgd if optimizer == "sgd" else torch.optim.Adam(self.leaves, lr=lr)

    def merge(self) -> None:
        pairs = zip(self.leaves, self.start, strict=True)
        share = self.momentum_source
        self.set_leaves([share * leaf.detach() + (1 - share) * start for leaf, start in pairs])

    def weigh(self, p: Tensor) -> dict[int, float] | None:
        """The weight of each sample that enters the loss; None where there are no weights."""
        if not self.weighting:
            return dict.fromkeys(range(len(p)), 1.0)
        likeness = [float(self.mean @ row) / float(self.mean.norm() * row.norm()) for row in p]
        diverse = [1 - value for value in likeness]
        certain = [float((row * torch.log(row.clamp(min=1e-300))).sum()) for row in p]
        if max(diverse) == min(diverse) or max(certain) == min(certain):
            return None
        diverse, certain = scale_to_unit(diverse), scale_to_unit(certain)
        limit = sum(diverse) / len(diverse)
        return {i: math.exp(3 * diverse[i] * certain[i]) for i in range(len(p)) if diverse[i] >= limit}

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        self.number += 1
        logits = self.score(images)
        p = logits.detach().softmax(1)
        weights = self.weigh(p)
        self.mean = 0.9 * self.mean + 0.1 * p.mean(0)
        total = torch.zeros((), dtype=torch.float64)
        if weights is not None:
            kept = sorted(weights)
            again = self.score(change(images[kept], self.number)) if self.consistency else None
            for place, i in enumerate(kept):
                own = logits[i].softmax(0)
                q = torch.minimum(own, torch.tensor(0.99, dtype=torch.float64))
                loss = -sum(q[c] * torch.log(q[c] / (1 - q[c]) + 1e-5) for c in range(plain.CLASSES))
                if again is not None:
                    other = again[place].softmax(0)
                    loss = loss - ((own * torch.log(other)).sum() + (other * torch.log(own)).sum()) / 2
                total = total + weights[i] * loss
            total = total / (self.batch or len(images))
            self.optimizer.zero_grad()
            total.backward()
            self.optimizer.step()
            self.merge()
        event = {"diverse": len(weights or ()), "loss": total.item(), "stepped": weights is not None}
        return self.correct(logits.detach()), event | {"drift": self.drift}

    def correct(self, logits: Tensor) -> Tensor:
        if not self.prior_correction:
            return logits
        prior = logits.softmax(1).mean(0)
        smooth = max(1 / len(logits), 1 / plain.CLASSES) / float(prior.max())
        return torch.stack([row * (prior + smooth) / (1 + smooth * plain.CLASSES) for row in logits])
