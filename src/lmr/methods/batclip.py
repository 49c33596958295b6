"""BATCLIP (Maharana et al. 2025): adapt both towers so that images move to their texts and classes move apart."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.bases.bimodal import BimodalMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import bimodal_loss
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "LMR paper, appendix, Baseline implementation details"

_CARD = Card(
    source="Maharana et al. 2025",
    year=2025,
    in_paper=True,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR-10-C", batch_size=200),
        "cifar10-c": Preset({"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 5e-4, "weight_decay": 0.01}, _SOURCE, batch_size=200),
        "imagenet": Preset({"optimizer": "adamw", "lr": 5e-4, "weight_decay": 0.01}, _SOURCE, batch_size=64),
    },
)


@register("batclip", _CARD)
class BATCLIP(BimodalMethod):
    """Bimodal adaptation: entropy, projection of class means on their texts, separation of class means.

    One step per batch on L_ent - L_pm - L_sp over the norms of both towers; the answer is the one before the step.
    What the authors' code does and the formulas do not say: class means for L_pm are of features as the tower gives
    them, not of unit features; L_sp is a sum over ordered pairs, so it grows with the square of the number of classes
    in the batch and outweighs the others; nothing is detached. With one class in the batch L_sp is 0.

    CIFAR-100-C is the only preset with Adam, whose weight decay is added to the gradient.
    """

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        def objective(raw: Tensor, prototypes: Tensor, logits: Tensor) -> tuple[Tensor, int]:
            return bimodal_loss(raw, prototypes, logits), len(torch.unique(logits.argmax(1)))

        loss, logits, present, gradient = self._differentiate(images, state["norms"], streams, objective)
        new = self.optim.descend(state, gradient)
        info = {"loss": loss.view(1), "present": torch.tensor([present]), "stepped": streams.sizes > 0}
        return Step(logits, new, info)
