"""ETA (Niu et al. 2022; EATA without its Fisher term): learn only from answers that are certain and diverse."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy
from lmr.core.method import SHARES, Ranges
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams, choose_rows

_KEPT = 0.9  # weight of the old running average, a constant of the authors' code
_SOURCE = "LMR paper, appendix, Baseline implementation details"

_CARD = Card(
    source="Niu et al. 2022",
    year=2022,
    in_paper=True,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR", batch_size=200),
        "cifar10-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 2.5e-4}, _SOURCE, batch_size=200),
        "imagenet": Preset({"optimizer": "sgd", "lr": 2.5e-4}, _SOURCE, batch_size=64),
    },
)


@register("eta", _CARD)
class ETA(NormMethod):
    """Entropy minimisation on the samples that are certain and unlike the average of those accepted before.

    A sample is certain if its entropy is below E0 = ``margin`` ln C. It is diverse if |cosine| between its
    probabilities and the running average of all accepted ones is below ``diversity``; before the first accepted sample
    there is no average, and certain is enough. The loss is the mean over the diverse samples (not over the batch) of
    exp(E0 - H) H, the weight without gradient; without a diverse sample there is no step. The answer is the one before
    the step. The average starts again with every stream, which the authors' reset omits.

    With balanced predictions the cosine of a confident sample is about 1 / sqrt(C). So at 0.05, a value made for 1000
    classes that the LMR paper uses everywhere, with ten classes almost nothing is diverse after the first batch; ports
    of ETA take 0.4 on CIFAR-10-C and 0.1 on CIFAR-100-C. ``certain`` and ``diverse`` in the info count the samples.
    """

    lr: float = 2.5e-4  # learning rate
    optimizer: OptimizerName = "adam"  # adam, adamw, or sgd with Nesterov momentum 0.9
    weight_decay: float = 0.0  # weight decay of the optimiser
    margin: float = 0.4  # E0 as a share of the largest entropy ln C
    diversity: float = 0.05  # largest |cosine| with the average; above 1 all are diverse

    def prepare(self) -> None:
        self._require_not_negative("lr", "weight_decay", "margin", "diversity")
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)

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
