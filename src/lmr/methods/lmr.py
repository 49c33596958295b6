"""Local Margin Restoration (LMR), ACM MM 2026: the method of the paper, in its symbols and equation numbers.

For every batch B_t: measure the margin m_i by which the protected classes P_i of each sample stand above the hardest
classes outside (eqs. 5-8); take one Adam step on the LayerNorm parameters theta towards a target margin gamma_i
(protected margin restoration, PMR: eqs. 9-11), which is smaller for classes with much mass n_t (adaptive margin, AM:
eqs. 12-14); answer with the new theta; and subtract the running class preference, the bias b_t, from the answer (bias
correction, BC: eqs. 15-17). ``core/functional/margin.py`` has the equations.

Two values are in no printed line of the paper, but in commented-out lines of its source: the clip of the bias to
[-2, 2], and the learning rate 1.5e-3 for ImageNet-A, -R, -Sketch and -V2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset, Role
from lmr.core.functional.margin import (
    FEW_CLASSES,
    TEN_CLASSES,
    adapt_margin,
    confidence_weight,
    correct_bias,
    find_protected,
    measure_margin,
    restoration_loss,
)
from lmr.core.method import COUNTS, SHARES, Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import AdaptedParameters, State, Step
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
        "imagenet-variants": Preset(
            {"lr": 1.5e-3}, "paper's source, a commented-out line: ImageNet-A, -R, -Sketch, -V2"
        ),
    },
    parts=("pmr", "am", "bc"),
    swept={"delta": ("delta",), "negatives": ("negatives", "positives")},
    former={"emit": "after", "pace": "batch", "share": 1.0, "prior": "uniform"},  # now of lmr_variants
)


@register("lmr", _CARD)
class LMR(NormMethod):
    """Local Margin Restoration: protected margins, adaptive targets, bias correction."""

    class_sums = ("mass", "running")
    emission = "after"

    lr: float = 1e-3  # learning rate of Adam
    delta: float = 0.03  # width of the protected set, in cosines (eq. 5)
    negatives: int = 5  # K, the number of hardest classes outside the protected set (eq. 8)
    tau: float = 0.3  # confidence below which a sample does not enter the loss (eq. 10)
    gamma0: float = 4.0  # target margin of a class with its fair share of the mass (eq. 14)
    beta: float = 1.0  # beta, how fast the target falls with a class's share of the mass (eq. 14)
    eta: float = 0.05  # step size of the bias correction (eq. 17)
    mu: float = 0.8  # memory of the running prediction (eq. 16)
    clip: float = 2.0  # largest absolute bias
    eps: float = 1e-6  # epsilon of all equations
    pmr: bool = True  # protected margin restoration: the step on the norms
    am: bool = True  # adaptive margin: the target depends on the class's share of the mass
    bc: bool = True  # bias correction of the answers
    positives: Literal["gap", "top1"] = "gap"  # protected set by the gap delta, or the top class alone (eq. 5)

    def prepare(self) -> None:
        self._require_not_negative("lr", "gamma0", "beta", "eta", "delta", "eps", "clip")
        self._require_between(0, 1 - 1e-9, "tau", "mu")
        self._require_between(torch.finfo(self.classifier.prototypes.dtype).tiny, 1, "eps")
        self._require_count("negatives", most=10**9)
        if self.pmr:
            super().prepare()
        self.optim = Optimizer("adam", self.lr)

    def begin(self) -> Mapping[str, Tensor | int]:
        zeros = self.classifier.prototypes.new_zeros(self.classifier.classes)
        norms = super().begin() if self.pmr else {}  # theta and the moments of Adam
        return {**norms, "mass": zeros, "bias": zeros, "running": zeros, "images": 0}  # n_t, b_t, u-bar_t

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {"mass": (0, None), "running": SHARES, "bias": (-self.clip, self.clip), "images": COUNTS}
        return super().ranges(state) | own

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        if self.pmr:
            logits, new, info = self._restore_margins(images, state, streams)  # eqs. 2, 5-14
        else:
            logits, new, info = self.classifier(images), {}, {}
        logits = logits + streams.repeat(state["bias"])  # eq. 15
        if self.bc:
            u = streams.mean(logits.softmax(1))
            new["bias"], new["running"] = correct_bias(  # eqs. 16, 17
                state["bias"], state["running"], state["images"] > 0, u, self.eta, self.mu, self.clip, self.eps
            )
        new["images"] = state["images"] + streams.sizes
        return Step(logits, new, info)

    def _restore_margins(
        self, images: Tensor, state: State, streams: Streams
    ) -> tuple[Tensor, State, dict[str, Tensor]]:
        """Take the step on the norms; return the logits [B, C] after it, what changes in the state, and facts [A]."""
        measured = self.tower.measure(images, state["norms"], streams, self._measure)  # first forward
        margin, reliable, logits, r, top, size = measured.values
        mass = state["mass"] + streams.sum(F.one_hot(top, self.classifier.classes) * r.unsqueeze(1))  # eq. 12
        target = torch.full_like(margin, self.gamma0)
        if self.am:
            target = adapt_margin(mass, r, top, streams, self.gamma0, self.beta, self.eps)  # eqs. 13, 14
        loss, gradient = restoration_loss(margin, target, r, streams, self.eps)  # eqs. 9, 11
        new, stepped = {"mass": mass}, streams.sum(r) > 0  # without a confident sample there is no step
        stale = streams.repeat(stepped).nonzero()[:, 0]  # a GPU is waited for: is there a step?
        if len(stale):
            new |= self.optim.descend(state, measured.vjp(gradient), stepped)
            logits = self.tower.recompute_logits(logits, stale, images, new["norms"], streams)  # second forward
        info = {
            "gate_share": streams.mean(reliable),
            "protected_size": streams.mean(size),
            "loss": loss,
            "stepped": stepped,
        }
        return logits, new, info

    def _measure(self, cosines: Tensor) -> tuple[Tensor, ...]:
        """Return of each sample its margin m, whether it enters the loss, o, r, its top class and the size of P."""
        logits, fixed = self.classifier.logits(cosines), cosines.detach()  # eq. 2
        protected = find_protected(fixed, self.delta, self.positives)  # eq. 5
        margin, negatives = measure_margin(logits, fixed, protected, self.negatives, self.eps)  # eqs. 6-8
        weight = confidence_weight(logits, self.tau) * negatives.any(1)  # eq. 10
        return margin, weight > 0, logits, weight, fixed.argmax(1), protected.sum(1)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        logits = super().answer(images, state, streams) if self.pmr else self.classifier(images)
        return logits + streams.repeat(state["bias"])  # eq. 15

    def export(self, state: State) -> AdaptedParameters:
        return dataclasses.replace(super().export(state), offset=state["bias"][0].clone())

    @classmethod
    def choose_values(cls, classes: int) -> dict[str, Any]:
        return dict(TEN_CLASSES) if classes < FEW_CLASSES else {}

    @property
    def trainable(self) -> int:
        return super().trainable if self.pmr else 0

    @property
    def margin_width(self) -> float:
        return self.delta

    def logit_offset(self) -> Tensor:
        return self.state["bias"]
