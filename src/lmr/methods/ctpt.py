"""C-TPT (Yoon et al. 2024): test-time prompt tuning that keeps the class prototypes apart, for better calibration."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.bases.prompts import PromptMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import marginal_entropy
from lmr.core.registry import register

_SOURCE = "the authors' released code"

_CARD = Card(
    label="C-TPT",
    source="Yoon et al. 2024",
    year=2024,
    presets={
        "default": Preset({}, _SOURCE + ": weight of ImageNet, views without AugMix", batch_size=1),
        "imagenet": Preset({}, _SOURCE + ": weight of ImageNet, views without AugMix", batch_size=1),
        "fine-grained": Preset({"augmix": True}, _SOURCE + ": fine-grained sets, views with AugMix", batch_size=1),
        "natural-shifts": Preset({"dispersion": 20.0, "augmix": True}, _SOURCE + ": natural shifts", batch_size=1),
    },
)


@register("ctpt", _CARD)
class CTPT(PromptMethod):
    """TPT's entropy less the dispersion of the prototypes: their mean distance from their mean. One joint step.

    The same prototypes serve both terms, and gradient flows through both. There is no published weight for
    corruptions; the default is that of fine-grained sets.
    """

    dispersion: float = 50.0  # weight of the dispersion of the prototypes

    def prepare(self) -> None:
        self._require_not_negative("dispersion")
        super().prepare()

    def loss(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        return marginal_entropy(logits) - self.dispersion * measure_dispersion(prototypes)


def measure_dispersion(prototypes: Tensor) -> Tensor:
    """Return the mean distance of unit prototypes [C, D] from their mean, which is not normalised again."""
    apart: Tensor = torch.linalg.vector_norm(prototypes - prototypes.mean(0), dim=1)
    return apart.mean()
