"""MINT (Bao et al. 2025): move the norms so that the class means separate, and let the text prototypes follow them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.method import COUNTS, UNIT, Ranges
from lmr.core.prediction import AdaptedParameters, State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "LMR paper, appendix, Baseline implementation details"

_CARD = Card(
    source="Bao et al. 2025",
    year=2025,
    in_paper=True,
    presets={
        "default": Preset({}, _SOURCE + ": all benchmarks"),
        "cifar10-c": Preset({"lr": 7e-3, "prior": 10000.0}, _SOURCE),
        "cifar100-c": Preset({"lr": 7e-3, "prior": 10000.0}, _SOURCE),
        "imagenet": Preset({"lr": 7e-3, "prior": 10000.0}, _SOURCE),
    },
)


@register("mint", _CARD)
class MINT(NormMethod):
    """Larger variance between pseudo-classes: one step from the original norms per batch, prototypes mixed with means.

    Neither weights nor an optimiser are kept between batches. The stream remembers the mean feature and the count of
    every pseudo-class before the step (pre) and after it (post), and the average gradient of all its batches. A batch
    joins the pre means first; they are constants in its loss, whose gradient joins the average; a fresh Adam's first
    step along it, norms - lr g / (|g| + 1e-8), moves every parameter by about ``lr`` whatever the scale of the loss.
    Seen through those norms the batch joins the post means, its pseudo-classes again those of the frozen text; the
    answer is the one after the step, by prototypes normalise((1 - rho) text + rho mean), rho = n / (prior + n) for n
    images so far, the mean of an unseen class 0. Within a batch every present class has equal weight, while means are
    the stream's. There is no weight decay: in a step of signs it would outweigh the data.

    ``predict`` answers with the present state: the original norms moved along the present average gradient,
    the text mixed with the present post means; before the first step that is the zero-shot classifier.
    """

    emission = "after"

    lr: float = 7e-3  # size of the one step from the original norms
    prior: float = 10000.0  # number of images that the text counts for

    def prepare(self) -> None:
        self._require_not_negative("lr")
        self._require_between(1e-30, 1e30, "prior")
        super().prepare()

    def begin(self) -> Mapping[str, Tensor | int]:
        prototypes = self.classifier.prototypes
        counts = torch.zeros(len(prototypes), dtype=torch.int64, device=prototypes.device)
        means = torch.zeros_like(prototypes)
        state: dict[str, Tensor | int] = {
            "batches": 0,
            "gradient": torch.zeros_like(self.bank.start),
            "pre_means": means,
            "pre_counts": counts,
        }
        return {**state, "post_means": means, "post_counts": counts}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {
            "batches": COUNTS,
            "pre_means": UNIT,
            "pre_counts": COUNTS,
            "post_means": UNIT,
            "post_counts": COUNTS,
        }
        return super().ranges(state) | own

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        loss, gradient, labels, new = self._differentiate(images, state, streams)
        batches = state["batches"] + 1
        gradient = state["gradient"].lerp(gradient, 1 / batches.unsqueeze(1).to(gradient.dtype))
        with torch.no_grad():
            moved = self._move(gradient)
            features = self.tower.features(images, moved, streams)
            means, counts = _join(state["post_means"], state["post_counts"], features, self._label(features), streams)
            logits = self._score(features, means, counts, streams)
        new |= {"norms": moved, "batches": batches, "gradient": gradient, "post_means": means, "post_counts": counts}
        classes = torch.tensor([len(set(streams.pick(labels, k).tolist())) for k in range(streams.count)])
        return Step(logits, new, {"loss": loss, "classes": classes, "stepped": streams.sizes > 0})

    def describe(self, state: State) -> Mapping[str, Tensor]:
        count = state["post_counts"].sum(1).cpu().double()
        return {"rho": count / (self.prior + count)}

    def _differentiate(
        self, images: Tensor, state: State, streams: Streams
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Return loss [A] and gradient [A, P] at the original norms, the pseudo-labels [B], and the new pre means."""
        norms = self.bank.start.repeat(streams.count, 1).requires_grad_()
        with torch.enable_grad():
            features = self.tower.features(images, norms, streams)
            labels = self._label(features.detach())
            means, counts = _join(state["pre_means"], state["pre_counts"], features.detach(), labels, streams)
            loss = -_spread(features, labels, means, counts, streams)
            (gradient,) = torch.autograd.grad(loss.sum(), norms)
        return loss.detach(), gradient, labels, {"pre_means": means, "pre_counts": counts}

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        features = self.tower.features(images, self._move(state["gradient"]), streams)
        return self._score(features, state["post_means"], state["post_counts"], streams)

    def export(self, state: State) -> AdaptedParameters:
        norms = self._name_norms(self._move(state["gradient"][0]))
        mixed = self._mix(state["post_means"][0], state["post_counts"][0].sum())
        return AdaptedParameters(mixed, norms=norms, from_prompts=False)

    def _label(self, features: Tensor) -> Tensor:
        return self.classifier.cosines(features).argmax(1)

    def _move(self, gradient: Tensor) -> Tensor:
        """Return the original norms after the first step of Adam along the gradient: [A, P]."""
        return self.bank.start - self.lr * gradient / (gradient.abs() + 1e-8)

    def _score(self, features: Tensor, means: Tensor, counts: Tensor, streams: Streams) -> Tensor:
        """Return logits by the mixed prototypes."""
        mixed = self._mix(means, counts.sum(1).view(-1, 1, 1))
        if streams.count == 1:
            return self.classifier.logits(self.classifier.cosines(features, mixed[0]))
        cosines = features.new_empty(len(features), len(self.classifier.prototypes))
        for k, own in enumerate(mixed):
            cosines[streams.index == k] = self.classifier.cosines(streams.pick(features, k), own)
        return self.classifier.logits(cosines)

    def _mix(self, means: Tensor, count: Tensor) -> Tensor:
        """Return text and means [..., C, D] mixed. Both parts are divided by 1 - rho, as only the direction counts."""
        return F.normalize(self.classifier.prototypes + count.to(means.dtype) / self.prior * means, dim=-1)


def _join(means: Tensor, counts: Tensor, features: Tensor, labels: Tensor, streams: Streams) -> tuple[Tensor, Tensor]:
    """Return class means [A, C, D] and counts [A, C] after adding a batch [B, D] of labelled features."""
    place = streams.index * counts.shape[1] + labels
    fresh = torch.bincount(place, minlength=counts.numel()).view_as(counts)
    sums = torch.zeros_like(means).flatten(0, 1).index_add(0, place, features).view_as(means)
    counts = counts + fresh
    return means + (sums - fresh.unsqueeze(2) * means) / counts.clamp(min=1).unsqueeze(2), counts


def _spread(features: Tensor, labels: Tensor, means: Tensor, counts: Tensor, streams: Streams) -> Tensor:
    """Return the variance [A] between classes: sum of w (|z - all|^2 - |z - own|^2) with constant means.

    Written as w (2 z - own - all) (own - all). With a single class, own and all are equal to the bit, and
    the gradient is exactly 0: no noise for a step of signs. The weights w give each class of this batch the same total.
    """
    present = torch.bincount(streams.index * counts.shape[1] + labels, minlength=counts.numel()).view_as(counts)
    weight = 1 / (present.count_nonzero(1)[streams.index] * present[streams.index, labels]).to(features.dtype)
    shares = counts.to(means.dtype) / counts.sum(1, keepdim=True)
    own, everything = means[streams.index, labels], (shares.unsqueeze(1) @ means).squeeze(1)[streams.index]
    return streams.sum(weight * ((2 * features - own - everything) * (own - everything)).sum(1))
