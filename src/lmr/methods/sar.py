"""SAR (Niu et al. 2023): sharpness-aware entropy minimisation on certain samples, with recovery from collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy
from lmr.core.method import COUNTS, Ranges
from lmr.core.norms import list_top_modules
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams, choose_rows

_KEPT = 0.9  # weight of the old running loss
_SOURCE = "mr-eggplant/SAR: ViT, learning rate 0.001 for 64 images"
_PORT = "mariodoebler/test-time-adaptation: ViT, learning rate 0.001 whatever the batch"

_CARD = Card(
    source="Niu et al. 2023",
    year=2023,
    presets={
        "default": Preset({}, _SOURCE),
        "cifar10-c": Preset({}, _PORT, batch_size=200),
        "cifar100-c": Preset({}, _PORT, batch_size=200),
        "imagenet": Preset({}, _SOURCE),
    },
)


@register("sar", _CARD)
class SAR(NormMethod):
    """Entropy minimisation in flat places: the gradient is taken ``rho`` uphill, on samples that are certain there too.

    A sample is certain if its entropy is below E0 = ``margin`` ln C. From the gradient g of the mean entropy of the
    certain samples the norms climb by rho g / |g|; of these samples, those that are still certain there give the second
    gradient, along which SGD (momentum 0.9, no Nesterov) steps from the norms before the climb. The answer is the one
    before the step. Where no sample is certain the gradient is 0 and the step is that of the momentum alone, as in the
    authors' code. A running mean of the second loss below ``recovery`` restores the original norms and starts again;
    the momentum stays, also as in their code, which keeps the mean by mistake (issue 4 of mr-eggplant/SAR).

    Norms of the blocks 9 to 11 (from 0) do not adapt, nor do those of a ``layer4`` or one that is called ``norm``; a
    final norm of another name, as CLIP's, does.
    """

    lr: float = 1e-3  # learning rate of SGD
    rho: float = 0.05  # how far the norms climb
    recovery: float = 0.2  # running loss below which the norms are restored
    margin: float = 0.4  # E0 as a share of the largest entropy ln C

    def prepare(self) -> None:
        self._require_not_negative("lr", "rho", "recovery", "margin")
        super().prepare()
        self.optim = Optimizer("sgd", self.lr, nesterov=False)

    def _find_skipped(self) -> set[str]:
        return list_top_modules(self.classifier.encoder)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the running loss, and the number of losses in it."""
        return {**super().begin(), "running": self.classifier.prototypes.new_zeros(()), "losses": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        limit = self.bank.limit
        return super().ranges(state) | {"running": (0, None), "losses": COUNTS, "moved": (-limit, limit)}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        gradient, logits, _, certain = self.tower.sum_gradients(images, state["norms"], streams, self._loss)
        count = streams.sum(certain.long())
        gradient = gradient / count.clamp(min=1).unsqueeze(1)
        uphill = (
            state["norms"] + self.rho / (torch.linalg.vector_norm(gradient, dim=1, keepdim=True) + 1e-12) * gradient
        )
        gradient, loss, still = self._differentiate_again(images[certain], uphill, streams.take(certain))
        new = self.optim.descend(state, gradient)
        new["moved"] = new["norms"]  # checked, not kept: a recovery must not hide a step that is out of range
        counted = still > 0
        running = torch.where(state["losses"] > 0, _KEPT * state["running"] + (1 - _KEPT) * loss, loss)
        running = torch.where(counted, running, state["running"])
        losses = state["losses"] + counted
        recovered = (losses > 0) & (running < self.recovery)
        new |= {"running": running.masked_fill(recovered, 0), "losses": losses.masked_fill(recovered, 0)}
        new["norms"] = choose_rows(recovered, self.bank.start.expand_as(new["norms"]), new["norms"])
        info = {"certain": count, "still_certain": still, "loss": loss, "recovered": recovered}
        return Step(logits, new, info | {"stepped": streams.sizes > 0})

    def _loss(self, logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entropies of the certain samples, 0 for the others, and which samples are certain."""
        uncertainty = entropy(logits)
        certain = uncertainty.detach() < self.margin * math.log(self.classifier.classes)
        return uncertainty.where(certain, 0), certain

    def _differentiate_again(self, images: Tensor, norms: Tensor, streams: Streams) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradient [A, P] and mean entropy [A] of the samples that are certain with ``norms``, and their number.

        Only samples that were certain before are given, as nothing couples two samples.
        """
        if not len(images):
            return torch.zeros_like(norms), norms.new_zeros(len(norms)), torch.zeros_like(streams.active)
        gradient, _, losses, still = self.tower.sum_gradients(images, norms, streams, self._loss)
        count = streams.sum(still.long())
        divisor = count.clamp(min=1)
        return gradient / divisor.unsqueeze(1), streams.sum(losses) / divisor, count
