"""TENT as a plain loop."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lmr.bench.cost.plain.loop import PlainLoop


class PlainTENT(PlainLoop):
    """Entropy minimisation; the answer is the one before the step."""

    lr = 2.5e-4

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Logits [B, C] and what happened."""
        logits = self.logits(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        self.descend(loss)
        return logits.detach(), {}
