"""SAR (Niu et al. 2023): sharpness-aware entropy minimisation on certain samples, with recovery from collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.functional.by_stream import choose_rows
from lmr.core.functional.gradients import climb
from lmr.core.functional.losses import entropy
from lmr.core.gradient import NormMethod
from lmr.core.method import COUNTS, Mix, Prediction, Preset, Ranges
from lmr.core.norms import list_numbered_modules
from lmr.core.optim import Optimizer
from lmr.core.registry import register
from lmr.core.traits import Passes

_KEPT = 0.9  # weight of the old running loss
_TOP = (9, 10, 11)  # blocks that do not adapt, whatever the depth of the tower
_SOURCE = "mr-eggplant/SAR: ViT, learning rate 0.001 for 64 images"
_PORT = "mariodoebler/test-time-adaptation: ViT, learning rate 0.001 whatever the batch"


@register("sar")
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

    source = "Niu et al. 2023"
    year = 2023
    needs_images = False
    aliases: ClassVar[dict[str, str]] = {"reset": "recovery"}  # its published name, which here is a method's
    many_streams = True
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE),
        "cifar10-c": Preset({}, _PORT, batch_size=200),
        "cifar100-c": Preset({}, _PORT, batch_size=200),
        "imagenet": Preset({}, _SOURCE),
    }

    lr: float = 1e-3
    rho: float = 0.05  # how far the norms climb
    recovery: float = 0.2  # running loss below which the norms are restored
    margin: float = 0.4  # E0 as a share of the largest entropy ln C

    def prepare(self) -> None:
        self._require_not_negative("lr", "rho", "recovery", "margin")
        super().prepare()
        self.optim = Optimizer("sgd", self.lr, nesterov=False)

    def list_skipped(self) -> set[str]:
        names = [name for name, _ in self.tower().named_modules()]
        named = {name for name in names if name == "norm" or "norm." in name or "layer4" in name}
        return named | list_numbered_modules(self.tower(), _TOP)

    def begin(self, streams: int) -> dict[str, Tensor]:
        """Also the running loss, and how many losses are in it."""
        norms = super().begin(streams)
        return norms | {"running": self.classifier.prototypes.new_zeros(streams), "losses": norms["steps"].clone()}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"running": (0, None), "losses": COUNTS}

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=1 + learning, backwards=2 * learning)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old = self.take(mix)
        gradient, logits, _, certain = self.sum_gradients(images, mix, old["norms"], self._judge)
        count = mix.sum(certain.long())
        uphill = climb(old["norms"], gradient / count.clamp(min=1).unsqueeze(1), self.rho)
        gradient, loss, still = self._look_again(images, mix, uphill, certain)
        new, stepped = self.propose(old, gradient, mix.all(logits.isfinite().all(1)))
        counted = stepped & (still > 0)
        running = torch.where(old["losses"] > 0, _KEPT * old["running"] + (1 - _KEPT) * loss, loss)
        running = torch.where(counted, running, old["running"])
        losses = old["losses"] + counted
        recovered = stepped & (losses > 0) & (running < self.recovery)
        new |= {"running": running.masked_fill(recovered, 0), "losses": losses.masked_fill(recovered, 0)}
        if bool(recovered.any()):
            new["norms"] = choose_rows(recovered, self.bank.start.expand_as(old["norms"]), new["norms"])
        self.put(new, mix)
        report = {"certain": count, "still_certain": still, "loss": loss, "recovered": recovered, "stepped": stepped}
        return Prediction(logits, self.summarise(report | {"drift": self.drift(mix)}, mix))

    def _judge(self, logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """The entropies of the certain samples, 0 for the others, and which are certain."""
        uncertainty = entropy(logits)
        certain = uncertainty.detach() < self.margin * math.log(self.classifier.classes)
        return uncertainty.where(certain, 0), certain

    def _look_again(self, images: Tensor, mix: Mix, norms: Tensor, certain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient [A, P] and mean entropy [A] of the samples that ``norms`` leave certain, and their number [A].

        Nothing couples two images, so that the others need not be encoded again.
        """
        if not bool(certain.any()):
            nobody = torch.zeros_like(mix.active)
            return torch.zeros_like(norms), norms.new_zeros(mix.count), nobody
        some = Mix(mix.active, mix.index[certain])
        gradient, _, losses, still = self.sum_gradients(images[certain], some, norms, self._judge)
        count = some.sum(still.long())
        divisor = count.clamp(min=1)
        return gradient / divisor.unsqueeze(1), some.sum(losses) / divisor, count
