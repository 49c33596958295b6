"""SelectiveMethod: the base of methods that learn only from certain and diverse samples (Niu et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import GradientMethod
from lmr.core.functional.losses import entropy
from lmr.core.method import SHARES, Ranges
from lmr.core.prediction import State, Step
from lmr.core.streams import Streams, choose_rows

_KEPT = 0.9  # weight of the old running average, a constant of the authors' code


@dataclass(kw_only=True, eq=False, repr=False)
class SelectiveMethod(GradientMethod):
    """Entropy minimisation on samples that are certain and unlike the average of those accepted before.

    A sample is certain if its entropy is below E0 = ``margin`` ln C. It is diverse if |cosine| between its
    probabilities and the running average of all accepted ones is below ``diversity``; before the first accepted sample
    there is no average, and certain is enough. The loss is the mean over the diverse samples (not over the batch) of
    exp(E0 - H) H, the weight without gradient; without a diverse sample there is no step. The answer is the one before
    the step, and the average starts again with every stream. Subclasses may add a penalty.
    """

    lr: float = 2.5e-4  # learning rate
    margin: float = 0.4  # E0 as a share of the largest entropy ln C
    diversity: float = 0.05  # largest |cosine| with the average; above 1 all are diverse

    def prepare(self) -> None:
        """Check the arguments and find the norms."""
        super().prepare()
        self._require_not_negative("margin", "diversity")

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the average probabilities of accepted samples: zeros before the first."""
        return {**super().begin(), "average": self.classifier.prototypes.new_zeros(self.classifier.classes)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return also the range of averages of probabilities."""
        return super().ranges(state) | {"average": SHARES}

    def _penalise(self, state: State) -> tuple[Tensor, Tensor] | None:
        """Return what is added to the loss [A] of each stream, and its gradient [A, P]; or None."""
        return None

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Take one step on the diverse samples of each stream that has any."""
        begun = state["steps"] > 0  # every step accepts samples, and nothing else does
        limit = self.margin * math.log(self.classifier.classes)

        def loss(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            uncertainty = entropy(logits)
            certain = uncertainty.detach() < limit
            likeness = F.cosine_similarity(state["average"][index], logits.detach().softmax(1))
            diverse = certain & ((likeness.abs() < self.diversity) | ~begun[index])
            weighted = (limit - uncertainty.detach()).exp() * uncertainty
            return weighted.where(diverse, 0), certain, diverse

        gradient, logits, losses, certain, diverse = self.tower.sum_gradients(images, state["norms"], streams, loss)
        count = streams.sum(diverse.long())
        divisor = count.clamp(min=1)
        gradient, mean_loss = gradient / divisor.unsqueeze(1), streams.sum(losses) / divisor
        penalty = self._penalise(state)
        if penalty is not None:
            mean_loss, gradient = mean_loss + penalty[0], gradient + penalty[1]
        stepped = count > 0
        new = self.optim.descend(state, gradient, stepped)
        fresh = streams.take(diverse).sum(logits[diverse].softmax(1)) / divisor.unsqueeze(1)
        average = choose_rows(begun, _KEPT * state["average"] + (1 - _KEPT) * fresh, fresh)
        new["average"] = choose_rows(stepped, average, state["average"])
        info = {"certain": streams.sum(certain.long()), "diverse": count, "loss": mean_loss, "stepped": stepped}
        return Step(logits, new, info)
