"""ROID (Marsden et al. 2024): weighted self-training on diverse samples, and norms that are pulled to their start."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset, Scores
from lmr.core.functional.losses import entropy, likelihood_ratio, symmetric_cross_entropy
from lmr.core.method import COUNTS, SHARES, Method, Ranges
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.prediction import AdaptedParameters, State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams, choose_rows
from lmr.core.views.jitter import Jitter, jitter_mirrored

_KEPT = 0.9  # weight of the old mean probabilities
_SHARPNESS = 3.0  # of the weights, which are from 1 to e^3
_MANY = 1000  # classes from which the prior correction is no longer ruinous


def list_presets(source: str) -> dict[str, Preset]:
    """Return the presets that ROID and CMF share: the port that has both uses the same values for them."""
    sgd = {"optimizer": "sgd", "lr": 2.5e-4}
    cifar = Preset({}, f"{source}: CIFAR", batch_size=200)
    return {
        "default": cifar,
        "cifar10-c": cifar,
        "cifar100-c": cifar,
        "imagenet": Preset(sgd, f"{source}: the ImageNet family"),
        "domainnet": Preset(sgd, f"{source}: DomainNet", batch_size=128),
        "clip": Preset(sgd | {"prior_correction": False}, f"{source}: the ImageNet family, without the prior"),
    }


@dataclass(kw_only=True, eq=False, repr=False)
class WeightedMethod(NormMethod):
    """One step per batch on diverse samples, weighted, after which the norms are merged with earlier ones.

    A sample is as diverse as u = 1 - cosine(m, p), p its probabilities and m their running mean in the stream (0.9 m +
    0.1 mean p after each batch), and as certain as c = -entropy. Both are scaled to [0, 1] over the batch. Samples with
    u at least its mean enter the loss, with the weight exp(3 u c), without gradient. The loss of a sample is its soft
    likelihood ratio plus (``consistency``) the symmetric cross-entropy with the answer to the augmented image, where
    gradient flows through both. The sum is divided by the batch size ``batch``, also in a short last batch; None takes
    the largest batch of the stream so far. ``weighting=False`` lets all samples enter with the weight 1.

    Where all u or all entropies of a batch are equal, as for a single image, there are no weights: the batch is
    answered and only m moves. The answer is the one before the step. Subclasses define ``merge``.

    ``prior_correction``, part of the released code, multiplies the logits of class c by (pi_c + s) / (1 + s C), pi the
    mean probabilities of the batch, s = max(1/B, 1/C) / max pi. It is ruinous for CLIP with few classes: CLIP's logits
    share a large offset, so the factor outweighs the evidence (zero-shot on twelve classes falls from 75.5 % to 48.5 %
    or less). On by default as released, off with preset "auto"; take ``prior_correction=False`` for CLIP.

    The augmentation is ``lmr.core.views.jitter.jitter_mirrored``, one draw for all images of a stream's batch, from
    ``seed`` and the number of the batch. Inputs that are not RGB images of a known scale are not augmented, and a
    warning says so.
    """

    scores = Scores.LABELS  # the prior correction takes them off the scale of cosines
    export_reason = "its prior correction depends on the batch; with prior_correction=False it can be exported"

    lr: float = 1e-3  # learning rate
    optimizer: OptimizerName = "adam"  # adam, adamw, or sgd with Nesterov momentum 0.9
    weight_decay: float = 0.0  # weight decay of the optimiser
    weighting: bool = True  # weigh samples by diversity and certainty, and leave out those that are not diverse
    consistency: bool = True  # also compare with the answer to the augmented image
    prior_correction: bool = True  # multiply logits by a prior, as released; ruinous for CLIP with few classes
    batch: int | None = None  # batch size that divides the loss; None: the largest batch so far
    seed: int = 0  # seed of the augmentation

    def prepare(self) -> None:
        """Check the arguments and find the norms."""
        self._require_not_negative("lr", "weight_decay")
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)
        if self.batch is not None:
            self._require_count("batch", most=10**6)
        self.jitter = Jitter(self.name, self.seed, self.classifier.pixels, jitter_mirrored)

    @classmethod
    def choose_values(cls, classes: int) -> dict[str, Any]:
        """Return the values without the prior correction, which few classes do not bear."""
        return {"prior_correction": False} if classes < _MANY else {}

    @abstractmethod
    def merge(self, norms: Tensor, state: State) -> dict[str, Tensor]:
        """Return the "norms" [A, P] that the stream goes on with after a step to ``norms``, and what else changes."""

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the mean probabilities, the number of batches and the largest of them."""
        classes = self.classifier.classes
        mean = self.classifier.prototypes.new_full((classes,), 1 / classes)
        return {**super().begin(), "mean": mean, "batches": 0, "largest": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return also the ranges of probabilities and counts."""
        return super().ranges(state) | {"mean": SHARES, "batches": COUNTS, "largest": COUNTS}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Take one step on the weighted samples of each stream, and merge its norms."""
        largest, number = state["largest"].maximum(streams.sizes), state["batches"] + 1
        norms = state["norms"].detach().requires_grad_()
        with torch.enable_grad():
            logits = self.tower.logits(images, norms, streams)
            weight, kept, stepped = self._weigh(logits.detach(), state["mean"], streams)
            weight = weight / streams.repeat(largest if self.batch is None else torch.full_like(largest, self.batch))
            gradient, losses = torch.zeros_like(norms), logits.new_zeros(len(logits))
            if bool(kept.any()):
                own = streams.take(kept)
                loss = likelihood_ratio(logits[kept])
                if self.consistency:
                    changed = self._change(images[kept], number, own)
                    loss = loss + symmetric_cross_entropy(logits[kept], self.tower.logits(changed, norms, own))
                (gradient,) = torch.autograd.grad((weight[kept] * loss).sum(), norms)
                losses[kept] = weight[kept] * loss.detach()
        logits = logits.detach()
        new = self.optim.descend(state, gradient, stepped)
        merged = self.merge(new["norms"], state)
        new |= {key: choose_rows(stepped, value, state[key]) for key, value in merged.items()}
        new["mean"] = _KEPT * state["mean"] + (1 - _KEPT) * streams.mean(logits.softmax(1))
        new |= {"batches": number, "largest": largest}
        info = {"diverse": streams.sum(kept.long()), "loss": streams.sum(losses), "stepped": stepped}
        return Step(self._correct(logits, streams), new, info)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits with the adapted norms, corrected by the prior of this batch."""
        return self._correct(super().answer(images, state, streams), streams)

    def export(self, state: State) -> AdaptedParameters:
        """Return the adapted norms, and what else the answer adds."""
        return Method.export(self, state) if self.prior_correction else super().export(state)

    def _weigh(self, logits: Tensor, mean: Tensor, streams: Streams) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weight [B] of each sample, the samples [B] that enter the loss, and the streams [A] that step."""
        if not self.weighting:
            every = torch.ones_like(streams.index, dtype=torch.bool)
            return torch.ones_like(logits[:, 0]), every, streams.sizes > 0
        diverse, varied = _scale_to_unit(1 - F.cosine_similarity(streams.repeat(mean), logits.softmax(1)), streams)
        certain, clear = _scale_to_unit(-entropy(logits), streams)
        stepped = varied & clear
        kept = (diverse >= streams.repeat(streams.mean(diverse))) & streams.repeat(stepped)
        return (_SHARPNESS * diverse * certain).exp(), kept, stepped

    def _change(self, images: Tensor, numbers: Tensor, streams: Streams) -> Tensor:
        """Return the images augmented, those of a stream by one draw for the number of its batch."""
        changed = torch.empty_like(images)
        for k, number in enumerate(numbers.tolist()):
            own = streams.index == k
            if bool(own.any()):
                changed[own] = self.jitter(images[own], number)
        return changed

    def _correct(self, logits: Tensor, streams: Streams) -> Tensor:
        """Return logits [B, C] times the smoothed prior of their stream."""
        if not self.prior_correction:
            return logits
        prior, classes = streams.mean(logits.softmax(1)), logits.shape[1]
        smooth = (1 / streams.sizes.to(prior.dtype)).clamp(min=1 / classes) / prior.amax(1)
        smooth = smooth.unsqueeze(1)
        return logits * streams.repeat((prior + smooth) / (1 + smooth * classes))


_CARD = Card(
    source="Marsden et al. 2024",
    year=2024,
    presets=list_presets("mariodoebler/test-time-adaptation"),
)


@register("roid", _CARD)
class ROID(WeightedMethod):
    """Weighted self-training and weight ensembling: after each step, norms = 0.99 norms + 0.01 original norms.

    Loss, weights, augmentation and prior correction are those of ``WeightedMethod``; the moments of the optimiser stay
    as they are when the norms are merged. The prior correction of the released code is on by default and ruinous for
    CLIP with few classes: take ``prior_correction=False``, or preset "auto" or "clip".

    The weights of samples are up to 20, so SGD needs the small learning rate of the preset "imagenet". A single image
    has no weights and is only answered; the released code adapts once for a window of single images instead.
    """

    momentum_source: float = 0.99  # weight of the adapted norms when they are merged with the original ones

    def prepare(self) -> None:
        super().prepare()
        self._require_between(0, 1, "momentum_source")

    def merge(self, norms: Tensor, state: State) -> dict[str, Tensor]:
        return {"norms": self.momentum_source * norms + (1 - self.momentum_source) * self.bank.start}


def _scale_to_unit(values: Tensor, streams: Streams) -> tuple[Tensor, Tensor]:
    """Return values [B] scaled to [0, 1] over each stream's samples, and the streams [A] whose values differ."""
    nothing = values.new_zeros(streams.count)
    low, high = (nothing.scatter_reduce(0, streams.index, values, end, include_self=False) for end in ("amin", "amax"))
    differs = high > low
    return (values - streams.repeat(low)) / streams.repeat((high - low).where(differs, 1)), differs
