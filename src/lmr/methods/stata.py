"""StatA (Zanella et al. 2025): Gaussians of the classes, fitted to a batch and anchored in the text."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.card import Card, Preset, Scores
from lmr.core.functional.select import link_nearest
from lmr.core.functional.transductive import answer_together, find_floor
from lmr.core.method import Method
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "MaxZanella/StatA: all datasets"
_SCALE = 1 / 50  # of the Gaussian log-likelihood, a constant of the authors' code
_INNER = 5  # updates of the assignments in a round

_CARD = Card(
    label="StatA",
    source="Zanella et al. 2025",
    year=2025,
    presets={name: Preset({}, _SOURCE) for name in ("default", "cifar10-c", "cifar100-c", "imagenet")},
)


@register("stata", _CARD)
class StatA(Method):
    """Soft assignments of a batch, and for every class a mean and a diagonal variance, in turns.

    The assignments begin as the zero-shot probabilities, the means as the text, one variance for all classes as that of
    the images around it. In a round five updates multiply the zero-shot probabilities by exp(log-likelihood / 50 +
    ``smooth`` times the mean assignment of linked images). Links go from an image to its ``neighbours`` nearest and
    weigh as much as their cosine; both directions count, and the mean divides by 2 ``neighbours``. Then the mean and
    variance of a class are mixed with those of the text: the share of the images is n / (alpha + n) for n images whose
    largest assignment the class is. After ``rounds`` of both a last round of updates makes the answer.

    The means of a class without images keep the text. Made for batches in which few classes occur. ``count="soft"``, an
    option of the authors' code, makes n the sum of the assignments to the class instead.
    """

    memory_span = "batch"
    emission = "after"
    scores = Scores.LABELS
    export_reason = "its answer to an image depends on the other images of the batch"

    alpha: float = 1.0  # number of images that the text counts for
    smooth: float = 1.0  # weight of linked images
    neighbours: int = 3  # nearest images that an image is linked to
    rounds: int = 10  # rounds of assignments and statistics
    count: Literal["hard", "soft"] = "hard"  # how the images of a class are counted

    def prepare(self) -> None:
        self._require_not_negative("alpha", "smooth", "neighbours")
        self._require_count("rounds")

    def logit_floor(self) -> float:
        return find_floor(self.classifier.prototypes.dtype)

    @torch.no_grad()
    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        features = self.classifier.features(images)
        return Step(answer_together(features, streams, self.classifier.classes, self.solve))

    def solve(self, features: Tensor) -> Tensor:
        """Return distributions over labels [N, C] of unit features [N, D]."""
        text = self.classifier.prototypes
        logits = self.classifier.logits(self.classifier.cosines(features))
        assigned = logits.softmax(1)
        start = (assigned.sum(0) @ text.square() - 2 * ((assigned.T @ features) * text).sum(0)) / len(features)
        start = (start + features.square().mean(0)).clamp(min=torch.finfo(features.dtype).eps)
        means, variances = text, start.expand_as(text)
        likeness = features @ features.T
        links = link_nearest(likeness, self.neighbours, likeness)
        links = (links + links.T) * self.smooth / max(1, 2 * self.neighbours)
        for number in range(self.rounds + 1):
            fixed = logits.log_softmax(1) + _SCALE * measure_likelihood(features, means, variances)
            for _ in range(_INNER):
                assigned = (fixed + links @ assigned).softmax(1)
            if number < self.rounds:
                means, variances = self._fit(features, assigned, start)
        return assigned

    def _fit(self, features: Tensor, assigned: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances [C, D] of the classes by the assignments [N, C], mixed with the text."""
        text, mass = self.classifier.prototypes, assigned.sum(0).unsqueeze(1)
        counts = mass
        if self.count == "hard":
            counts = torch.bincount(assigned.argmax(1), minlength=len(text)).to(features.dtype).unsqueeze(1)
        share = counts / (self.alpha + counts + 1e-12)
        found = mass > torch.finfo(features.dtype).tiny
        weights = assigned.T / mass.where(found, 1)
        own = F.normalize(weights @ features, dim=-1).where(found, text)
        means = F.normalize(share * own + (1 - share) * text, dim=-1)
        spread = (weights @ features.square() - 2 * means * (weights @ features) + means.square()).clamp(min=0)
        spread = spread.where(found, 0)
        variances = share * spread + (1 - share) * (start + (text - means).square())
        return means, variances.clamp(min=torch.finfo(features.dtype).eps)


def measure_likelihood(features: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Return the Gaussian log-likelihood [N, C], without its constant, of features [N, D]; variances are [C, D]."""
    inverse = 1 / variances
    squares = features.square() @ inverse.T - 2 * features @ (means * inverse).T + (means.square() * inverse).sum(1)
    return -0.5 * (squares + variances.log().sum(1))
