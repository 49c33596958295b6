"""ETA (Niu et al. 2022; EATA without its Fisher term): learn only from answers that are certain and diverse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from lmr.core.functional.by_stream import choose_rows, sum_by_stream
from lmr.core.functional.losses import entropy
from lmr.core.gradient import GradientMethod
from lmr.core.method import SHARES, Mix, Prediction, Preset, Ranges
from lmr.core.registry import register
from lmr.core.traits import Passes

_SOURCE = "LMR paper, appendix, Baseline implementation details"
_KEPT = 0.9  # weight of the old running average, a constant of the authors' code


@register("eta")
class ETA(GradientMethod):
    """Entropy minimisation on the samples that are certain and unlike the average of those accepted before.

    A sample is certain if its entropy is below E0 = ``margin`` ln C. It is diverse if |cosine| between its
    probabilities and the running average of all accepted ones is below ``diversity``; before the first accepted sample
    there is no average, and certain is enough. The loss is the mean over the diverse samples (not over the batch) of
    exp(E0 - H) H, the weight without gradient; without a diverse sample there is no step. The answer is the one before
    the step, and the average starts again with every stream, which the authors' reset omits.

    With balanced predictions the cosine of a confident sample is about 1 / sqrt(C). So at 0.05, a value made for 1000
    classes that the LMR paper uses everywhere, with ten classes almost nothing is diverse after the first batch; ports
    of ETA take 0.4 on CIFAR-10-C and 0.1 on CIFAR-100-C. ``certain`` and ``diverse`` in the info count the samples.
    """

    source = "Niu et al. 2022"
    year = 2022
    needs_images = False
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE + ": CIFAR", batch_size=200),
        "cifar10-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "imagenet": Preset({"optimizer": "sgd", "lr": 2.5e-4}, _SOURCE, batch_size=64),
    }

    lr: float = 2.5e-4
    margin: float = 0.4  # E0 as a share of the largest entropy ln C
    diversity: float = 0.05  # largest |cosine| with the average; above 1 all are diverse

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("margin", "diversity")

    def begin(self, streams: int) -> dict[str, Tensor]:
        average = self.classifier.prototypes.new_zeros(streams, self.classifier.classes)
        return super().begin(streams) | {"average": average}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"average": SHARES}

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=1, backwards=learning)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old = self.take(mix)
        begun = old["steps"] > 0  # each step accepts samples, nothing else does
        limit = self.margin * math.log(self.classifier.classes)

        def judge(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            uncertainty = entropy(logits)
            certain = uncertainty.detach() < limit
            likeness = F.cosine_similarity(old["average"][index], logits.detach().softmax(1))
            diverse = certain & ((likeness.abs() < self.diversity) | ~begun[index])
            weighted = (limit - uncertainty.detach()).exp() * uncertainty
            return weighted.where(diverse, 0), certain, diverse

        gradient, logits, losses, certain, diverse = self.sum_gradients(images, mix, old["norms"], judge)
        count = mix.sum(diverse.long())
        divisor = count.clamp(min=1)
        wanted = (count > 0) & mix.all(logits.isfinite().all(1))
        new, stepped = self.propose(old, gradient / divisor.unsqueeze(1), wanted)
        fresh = sum_by_stream(logits[diverse].softmax(1), mix.index[diverse], mix.count) / divisor.unsqueeze(1)
        kept = choose_rows(begun, _KEPT * old["average"] + (1 - _KEPT) * fresh, fresh)
        self.put(new | {"average": choose_rows(stepped, kept, old["average"])}, mix)
        report = {"certain": mix.sum(certain.long()), "diverse": count, "loss": mix.sum(losses) / divisor}
        return Prediction(logits, self.summarise(report | {"stepped": stepped, "drift": self.drift(mix)}, mix))
