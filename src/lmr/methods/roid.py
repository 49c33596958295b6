"""ROID (Marsden et al. 2024): weighted self-training on diverse samples, and norms that are pulled to their start."""

from __future__ import annotations

from torch import Tensor

from lmr.core.bases.weighted import WeightedMethod, list_presets
from lmr.core.card import Card
from lmr.core.prediction import State
from lmr.core.registry import register

_CARD = Card(
    source="Marsden et al. 2024",
    year=2024,
    presets=list_presets("mariodoebler/test-time-adaptation"),
)


@register("roid", _CARD)
class ROID(WeightedMethod):
    """Weighted self-training and weight ensembling: after each step, norms = 0.99 norms + 0.01 original norms.

    Loss, weights, augmentation and prior correction are those of ``WeightedMethod``; the moments of the optimiser stay
    as they are when the norms are merged. The prior correction of the released code is on by default and ruinous for
    CLIP with few classes: take ``prior_correction=False``, or preset "auto" or "clip".

    The weights of samples are up to 20, so SGD needs the small learning rate of the preset "imagenet". A single image
    has no weights and is only answered; the released code adapts once for a window of single images instead.
    """

    momentum_source: float = 0.99  # weight of the adapted norms when they are merged with the original ones

    def prepare(self) -> None:
        super().prepare()
        self._require_between(0, 1, "momentum_source")

    def merge(self, norms: Tensor, state: State) -> dict[str, Tensor]:
        return {"norms": self.momentum_source * norms + (1 - self.momentum_source) * self.bank.start}
