"""SelectiveMethod: the base of methods that learn only from answers that are certain and diverse (Niu et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from lmr.core.functional.by_stream import choose_rows, sum_by_stream
from lmr.core.functional.losses import entropy
from lmr.core.gradient import GradientMethod
from lmr.core.method import SHARES, Mix, Prediction, Ranges
from lmr.core.traits import Passes

_KEPT = 0.9  # weight of the old running average, a constant of the authors' code


@dataclass(kw_only=True, eq=False, repr=False)
class SelectiveMethod(GradientMethod):
    """Entropy minimisation on the samples that are certain and unlike the average of those accepted before.

    A sample is certain if its entropy is below E0 = ``margin`` ln C. It is diverse if |cosine| between its
    probabilities and the running average of all accepted ones is below ``diversity``; before the first accepted sample
    there is no average, and certain is enough. The loss is the mean over the diverse samples (not over the batch) of
    exp(E0 - H) H, the weight without gradient; without a diverse sample there is no step. The answer is the one before
    the step, and the average starts again with every stream. Subclasses may add a penalty.
    """

    lr: float = 2.5e-4
    margin: float = 0.4  # E0 as a share of the largest entropy ln C
    diversity: float = 0.05  # largest |cosine| with the average; above 1 all are diverse

    def prepare(self) -> None:
        """Check the arguments and find the norms."""
        super().prepare()
        self._require_not_negative("margin", "diversity")

    def begin(self, streams: int) -> dict[str, Tensor]:
        """Also the average probabilities of accepted samples: zeros before the first."""
        average = self.classifier.prototypes.new_zeros(streams, self.classifier.classes)
        return super().begin(streams) | {"average": average}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Averages of probabilities."""
        return super().ranges(state) | {"average": SHARES}

    def count_passes(self, learning: float = 1.0) -> Passes:
        """One forward, and a backward of the samples that are accepted."""
        return Passes(forwards=1, backwards=learning)

    def penalise(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """What is added to the loss [A] of each stream with the state ``rows``, and its gradient [A, P]; or None."""
        return None

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        """One step on the diverse samples of each stream that has any."""
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
        gradient, loss = gradient / divisor.unsqueeze(1), mix.sum(losses) / divisor
        penalty = self.penalise(old)
        if penalty is not None:
            loss, gradient = loss + penalty[0], gradient + penalty[1]
        new, stepped = self.propose(old, gradient, wanted)
        fresh = sum_by_stream(logits[diverse].softmax(1), mix.index[diverse], mix.count) / divisor.unsqueeze(1)
        kept = choose_rows(begun, _KEPT * old["average"] + (1 - _KEPT) * fresh, fresh)
        self.put(new | {"average": choose_rows(stepped, kept, old["average"])}, mix)
        report = {"certain": mix.sum(certain.long()), "diverse": count, "loss": loss}
        return Prediction(logits, self.summarise(report | {"stepped": stepped, "drift": self.drift(mix)}, mix))
