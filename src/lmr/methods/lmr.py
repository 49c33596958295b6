"""Local Margin Restoration (LMR), ACM MM 2026. Equation numbers are those of the paper.

For every batch: measure how far the plausible classes of each confident sample (the candidate set) stand above the
hardest classes outside it; take one Adam step on the LayerNorm parameters towards a target margin (PMR); let that
target shrink for classes that hold much of the stream's mass (adaptive margin, AM); answer with the updated tower; and
subtract the stream's persistent class preference from the answer (bias correction, BC).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.margin import MarginMethod
from lmr.core.card import Card, Preset, Role, Switch
from lmr.core.functional.margin import TEN_CLASSES, adapt_margin, correct_bias, restoration_loss
from lmr.core.functional.pace import USUAL_BATCH, count_waiting, pace_bias, select_samples
from lmr.core.functional.prior import Prior, parse_prior
from lmr.core.method import COUNTS, Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_PAPER = "paper, Implementation details"
_CARD = Card(
    source="Huang et al. 2026",
    year=2026,
    role=Role.OURS,
    in_paper=True,
    presets={
        "default": Preset({}, f"{_PAPER}: CIFAR-100-C and ImageNet-C"),
        "cifar10-c": Preset(TEN_CLASSES, _PAPER),
        "cifar100-c": Preset({}, _PAPER),
        "imagenet": Preset({}, f"{_PAPER}: ImageNet-C"),
        "imagenet-variants": Preset({"lr": 1.5e-3}, "paper's source, appendix: ImageNet-A, -R, -Sketch and -V2"),
    },
    parts=("pmr", "am", "bc"),
    gated=True,
    swept={"delta": ("delta",), "negatives": ("negatives", "positives")},
    switches=(  # shares of the gain, measured on drawings and photographs: docs/cost.md
        Switch({}, 1.0),
        Switch({"emit": "before"}, 0.92),
        Switch({"share": 0.5}, 0.80),
        Switch({"share": 0.25}, 0.65),
        Switch({"share": 0.25, "emit": "before"}, 0.61),
        Switch({"pmr": False}, 0.49),
    ),
)


@register("lmr", _CARD)
class LMR(MarginMethod):
    """Local Margin Restoration: protected margins, adaptive targets, bias correction.

    ``MarginMethod`` has the arguments of eqs. 5 to 17 and measures margins (eqs. 5-8, 10).

    With ``share`` below 1, only that share of each stream's samples enters margin, mass, loss and step; all images are
    answered, and all answers enter the bias correction. With ``pace="image"``, lr, eta and mu hold for 64 images.
    """

    needs_images = False
    class_sums = ("mass", "running")

    pmr: bool = True  # protected margin restoration: the step on the norms
    am: bool = True  # adaptive margin: the target depends on the class's share of the mass
    bc: bool = True  # bias correction of the answers
    positives: Literal["gap", "top1"] = "gap"  # candidate set by the gap delta, or the top class alone (eq. 5)
    emit: Literal["after", "before"] = "after"  # answer with the norms after or before the step
    pace: Literal["batch", "image"] = "batch"  # lr, eta and mu hold for a batch, or for 64 images
    share: float = 1.0  # share of each stream's samples in a batch that enter the loss, evenly spaced
    prior: Prior = "uniform"  # class shares that the bias correction drives answers to: equal as published, or given

    def prepare(self) -> None:
        super().prepare()
        self._require_between(torch.finfo(self.classifier.prototypes.dtype).tiny, 1, "share")
        self._shares = None if self.prior == "uniform" else parse_prior(self.prior, self.classifier.prototypes)
        self.optim = Optimizer("adam", self.lr, unit=1 if self.pace == "batch" else USUAL_BATCH)

    def _restores(self) -> bool:
        return self.pmr

    def begin(self) -> Mapping[str, Tensor | int]:
        zeros = self.classifier.prototypes.new_zeros(self.classifier.classes)
        return {**super().begin(), "mass": zeros, "bias": zeros, "running": zeros, "images": 0, "waiting": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"waiting": COUNTS}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        seen = state["images"]
        new: State = {"images": seen + streams.sizes}
        if self.pmr:
            restored, logits, stale, info = self._restore_margins(images, state, streams)  # eqs. 5-14
            new |= restored
            norms = new.get("norms", state["norms"]) if self.emit == "after" else state["norms"]
            logits = self.tower.recompute_logits(logits, stale, images, norms, streams)  # eq. 2, second forward
        else:
            logits, info = self.classifier(images), {}
        logits = logits + streams.spread(state["bias"])  # eq. 15
        if self.bc:
            eta, mu = (self.eta, self.mu) if self.pace == "batch" else pace_bias(seen, streams, self.eta, self.mu)
            mean = streams.mean(logits.softmax(1))  # u of eq. 16
            new["bias"], new["running"] = correct_bias(  # eqs. 16, 17
                state["bias"], state["running"], seen > 0, mean, eta, mu, self.clip, self.eps, self._shares
            )
        return Step(logits, new, info)

    def _restore_margins(
        self, images: Tensor, state: State, streams: Streams
    ) -> tuple[State, Tensor, Tensor, dict[str, Tensor]]:
        """Take the step on the norms.

        Returns the new state, the logits [B, C] before the step, which of them [B] must be recomputed, and facts [A].
        """
        selected = select_samples(streams, self.share)
        chosen, some = (images, streams) if self.share == 1 else (images[selected], streams.take(selected))
        measure = partial(self._measure, positives=self.positives)
        measured = self.tower.measure(chosen, state["norms"], some, measure)  # eqs. 2, 5-8, 10; first forward
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
            new |= self.optim.descend(state, measured.pull_back(gradient), stepped, taken)
        logits = before.new_zeros(len(images), before.shape[1])
        logits[selected] = before
        stale = ~selected | streams.spread(stepped) if self.emit == "after" else ~selected
        info = {"gate_share": some.mean(reliable), "protected_size": some.mean(size), "loss": loss, "stepped": stepped}
        return new, logits, stale, info
