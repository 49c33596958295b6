"""ETA (Niu et al. 2022; EATA without its Fisher term): learn from answers that are certain and new, from no others."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from lmr.core.functional.losses import entropy
from lmr.core.gradient import GradientMethod
from lmr.core.method import Mix, Prediction, Preset
from lmr.core.registry import register
from lmr.core.traits import Passes, Tower

_SOURCE = "LMR paper, appendix, Baseline implementation details"
_KEPT = 0.9  # memory of the running average, a constant of the authors' code


@register("eta")
class ETA(GradientMethod):
    """Entropy minimisation on the samples that are certain and unlike the average of those that taught before.

    A sample is certain if its entropy is below E0 = ``margin`` ln C. It is diverse if |cosine| between its
    probabilities and the running average of all accepted ones is below ``diversity``; until something was accepted
    there is no average, and certain is enough. The loss is the mean over the diverse samples (not over the batch) of
    exp(E0 - H) H, the weight without gradient; without a diverse sample there is no step. The answer is the one before
    the step, and the average begins anew with every stream, which the authors' reset forgets.

    With balanced predictions the cosine of a confident sample is about 1 / sqrt(C). So at 0.05, a value made for 1000
    classes that the LMR paper uses everywhere, ten classes leave almost nothing diverse after the first batch; ports
    of ETA take 0.4 on CIFAR-10-C and 0.1 on CIFAR-100-C. ``certain`` and ``diverse`` in the info count the samples.
    """

    source = "Niu et al. 2022"
    year = 2022
    towers = (Tower.IMAGE,)
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE + ": CIFAR", batch_size=200),
        "cifar10-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "imagenet": Preset({"optimizer": "sgd", "lr": 2.5e-4}, _SOURCE, batch_size=64),
    }

    lr: float = 2.5e-4
    margin: float = 0.4  # E0 as a share of the largest entropy ln C
    diversity: float = 0.05  # largest |cosine| with the average; above 1 nothing is left out

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("margin", "diversity")

    def begin(self, streams: int) -> dict[str, Tensor]:
        average = self.classifier.prototypes.new_zeros(streams, self.classifier.classes)
        return super().begin(streams) | {"average": average}

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=1, backwards=learning)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        average, begun = self.state["average"], bool(self.state["steps"] > 0)  # each step accepts, nothing else does
        limit = self.margin * math.log(self.classifier.classes)

        def judge(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            uncertainty = entropy(logits)
            certain = diverse = uncertainty.detach() < limit
            if begun:
                likeness = F.cosine_similarity(average, logits.detach().softmax(1))
                diverse = certain & (likeness.abs() < self.diversity)
            weighted = (limit - uncertainty.detach()).exp() * uncertainty
            return weighted.where(diverse, 0), certain, diverse

        gradient, logits, losses, certain, diverse = self.sum_slopes(images, judge)
        count, stepped = int(diverse.sum()), False
        if count:
            stepped = self.descend(gradient / count)
            if stepped:
                fresh = logits[diverse].softmax(1).mean(0, keepdim=True)
                average.copy_(_KEPT * average + (1 - _KEPT) * fresh if begun else fresh)
        loss = losses.sum().item() / max(1, count)
        info = {"certain": int(certain.sum()), "diverse": count, "loss": loss}
        return Prediction(logits, info | {"stepped": stepped, "drift": self.drift()})
