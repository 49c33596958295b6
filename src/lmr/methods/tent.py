"""TENT (Wang et al. 2021) on a vision-language model: minimise the entropy of the answers."""

from __future__ import annotations

from torch import Tensor

from lmr.core.bases.norms import GradientMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy
from lmr.core.registry import register

_SOURCE = "LMR paper, appendix, Baseline implementation details"

_CARD = Card(
    source="Wang et al. 2021",
    year=2021,
    in_paper=True,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR", batch_size=200),
        "cifar10-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "imagenet": Preset({"optimizer": "sgd", "lr": 2.5e-4}, _SOURCE, batch_size=64),
    },
)


@register("tent", _CARD)
class TENT(GradientMethod):
    """Entropy minimisation: one step per batch on the mean entropy of all samples.

    The answer is the one before the step, as in the authors' code. (Ports that forward once more are not comparable.)
    """

    lr: float = 2.5e-4  # learning rate

    def loss(self, logits: Tensor) -> Tensor:
        return entropy(logits)
