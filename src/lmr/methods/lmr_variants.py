"""LMR with four changes that are not in its paper: the moment of the answer, the samples, the pace, class shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.card import Card, Preset, Role
from lmr.core.functional.margin import TEN_CLASSES, adapt_margin, correct_bias, restoration_loss
from lmr.core.functional.pace import USUAL_BATCH, count_waiting, pace_bias, select_samples
from lmr.core.functional.prior import Prior, parse_prior
from lmr.core.method import COUNTS, Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams
from lmr.methods.lmr import LMR

_CARD = Card(
    label="LMR variants",
    source="this project, 2026",
    year=2026,
    role=Role.OURS,
    presets={
        "default": Preset({}, "values of LMR for CIFAR-100-C and ImageNet-C"),
        "cifar10-c": Preset(TEN_CLASSES, "values of LMR for CIFAR-10-C"),
    },
    parts=("pmr", "am", "bc"),
)


@register("lmr_variants", _CARD)
class LMRVariants(LMR):
    """LMR with four more arguments; at their defaults it is LMR.

    ``emit="before"`` answers before the step and saves the second forward. With ``share`` below 1, only that share of
    each stream's samples enters margin, mass, loss and step; all images are answered, and all answers enter the bias
    correction. With ``pace="image"``, lr, eta and mu hold for 64 images. ``prior`` are the class shares that the bias
    correction drives answers to.
    """

    emit: Literal["after", "before"] = "after"  # answer with the norms after or before the step
    pace: Literal["batch", "image"] = "batch"  # lr, eta and mu hold for a batch, or for 64 images
    share: float = 1.0  # share of each stream's samples in a batch that enter the loss, evenly spaced
    prior: Prior = "uniform"  # class shares that the bias correction drives answers to: equal as published, or given

    def prepare(self) -> None:
        super().prepare()
        self._require_between(torch.finfo(self.classifier.prototypes.dtype).tiny, 1, "share")
        self._shares = None if self.prior == "uniform" else parse_prior(self.prior, self.classifier.prototypes)
        self.optim = Optimizer("adam", self.lr, unit=1 if self.pace == "batch" else USUAL_BATCH)

    def begin(self) -> Mapping[str, Tensor | int]:
        return {**super().begin(), "waiting": 0}  # images since the last step

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"waiting": COUNTS}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        seen = state["images"]
        new: State = {"images": seen + streams.sizes}
        if self.pmr:
            restored, logits, stale, info = self._restore_share(images, state, streams)  # eqs. 5-14
            new |= restored
            norms = new.get("norms", state["norms"]) if self.emit == "after" else state["norms"]
            logits = self.tower.recompute_logits(logits, stale.nonzero()[:, 0], images, norms, streams)  # eq. 2 again
        else:
            logits, info = self.classifier(images), {}
        logits = logits + streams.repeat(state["bias"])  # eq. 15
        if self.bc:
            eta, mu = (self.eta, self.mu) if self.pace == "batch" else pace_bias(seen, streams, self.eta, self.mu)
            mean = streams.mean(logits.softmax(1))  # u of eq. 16
            new["bias"], new["running"] = correct_bias(  # eqs. 16, 17
                state["bias"], state["running"], seen > 0, mean, eta, mu, self.clip, self.eps, self._shares
            )
        return Step(logits, new, info)

    def _restore_share(
        self, images: Tensor, state: State, streams: Streams
    ) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        """Take the step on the norms.

        Returns the new state, the logits [B, C] before the step, which of them [B] must be recomputed, and facts [A].
        """
        selected, every = select_samples(streams, self.share), self.share == 1
        numbers = slice(None) if every else selected.nonzero()[:, 0]
        chosen, some = images if every else images[numbers], streams.take(numbers)
        measured = self.tower.measure(chosen, state["norms"], some, self._measure)  # eqs. 2, 5-8, 10; first forward
        margin, reliable, before, weight, top, size = measured.values
        mass = state["mass"] + some.sum(F.one_hot(top, self.classifier.classes) * weight.unsqueeze(1))  # eq. 12
        target = torch.full_like(margin, self.gamma0)
        if self.am:
            target = adapt_margin(mass, weight, top, some, self.gamma0, self.beta, self.eps)  # eqs. 13, 14
        loss, gradient = restoration_loss(margin, target, weight, some, self.eps)  # eqs. 9, 11
        stepped, taken = some.sum(weight) > 0, count_waiting(state["waiting"], streams)
        new = {"mass": mass, "waiting": taken.masked_fill(stepped, 0)}
        if bool(stepped.any()):
            taken = taken if self.pace == "image" else torch.ones_like(taken)
            new |= self.optim.descend(state, measured.vjp(gradient), stepped, taken)
        logits = before.new_zeros(len(images), before.shape[1])
        logits[numbers] = before
        stale = ~selected | streams.repeat(stepped) if self.emit == "after" else ~selected
        info = {"gate_share": some.mean(reliable), "protected_size": some.mean(size), "loss": loss, "stepped": stepped}
        return new, logits, stale, info
