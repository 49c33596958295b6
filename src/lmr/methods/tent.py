"""TENT (Wang et al. 2021) on a vision-language model: minimise the entropy of the answers."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmr.core.functional.losses import entropy
from lmr.core.gradient import GradientMethod
from lmr.core.method import Mix, Prediction, Preset
from lmr.core.registry import register
from lmr.core.traits import Passes

_SOURCE = "LMR paper, appendix, Baseline implementation details"


@register("tent")
class TENT(GradientMethod):
    """Entropy minimisation: one step per batch on the mean entropy of all samples.

    The answer is the one before the step, as in the authors' code. (Ports that forward once more are not comparable.)
    """

    source = "Wang et al. 2021"
    year = 2021
    in_paper = True
    needs_images = False
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE + ": CIFAR", batch_size=200),
        "cifar10-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "imagenet": Preset({"optimizer": "sgd", "lr": 2.5e-4}, _SOURCE, batch_size=64),
    }

    lr: float = 2.5e-4

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=1, backwards=1)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        norms = self.take(mix, "norms")["norms"]
        gradient, logits, losses = self.sum_gradients(images, mix, norms, lambda logits, _: (entropy(logits),))
        stepped = self.descend(gradient / mix.sizes.unsqueeze(1), logits, mix)
        report = {"loss": mix.mean(losses), "stepped": stepped, "drift": self.drift(mix)}
        return Prediction(logits, self.summarise(report, mix))
