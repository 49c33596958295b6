"""LAME (Boudiaf et al. 2022): correct the probabilities of a batch so that near images get near answers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lmr.core.card import Card, Preset, Scores
from lmr.core.functional.select import link_nearest
from lmr.core.functional.transductive import answer_together, find_floor
from lmr.core.method import Method
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "fiveai/LAME, its default configuration"
_TOLERANCE = 1e-8  # relative change of the energy that ends the iterations

_CARD = Card(
    source="Boudiaf et al. 2022",
    year=2022,
    presets={name: Preset({}, _SOURCE) for name in ("default", "cifar10-c", "cifar100-c", "imagenet")},
)


@register("lame", _CARD)
class LAME(Method):
    """Laplacian-adjusted maximum likelihood: no weights change, only the assignments of the batch.

    With the zero-shot probabilities p and the affinities K of the images, y = softmax(log(p + 1e-10) + K y) is repeated
    until the energy of the assignments changes by less than 1e-8 of itself, or ``steps`` times. ``affinity="rbf"`` is
    exp(-d^2 / 2 s^2) of the distance d between unit features, s the mean distance of an image to its ``neighbours``-th
    nearest, itself counted; "knn" is 1 for the ``neighbours`` nearest others and 0 elsewhere; "linear" is the cosine.
    Made for batches in which neighbours are of one class, as in a video.
    """

    memory_span = "batch"
    emission = "after"
    scores = Scores.LABELS
    export_reason = "its answer to an image depends on the other images of the batch"

    affinity: Literal["rbf", "knn", "linear"] = "rbf"  # affinity of two images
    neighbours: int = 5  # nearest images, for the width of "rbf" and the links of "knn"
    steps: int = 100  # iterations at most

    def prepare(self) -> None:
        self._require_count("neighbours", "steps")

    def logit_floor(self) -> float:
        return find_floor(self.classifier.prototypes.dtype)

    @torch.no_grad()
    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        features = self.classifier.features(images)
        return Step(answer_together(features, streams, self.classifier.classes, self.solve))

    def solve(self, features: Tensor) -> Tensor:
        """Return distributions over labels [N, C] of unit features [N, D]."""
        probabilities = self.classifier.logits(self.classifier.cosines(features)).softmax(1)
        unary, near = -(probabilities + 1e-10).log(), self._relate(features)
        assigned, energy = (-unary).softmax(1), torch.inf
        for number in range(self.steps):
            pull = near @ assigned
            assigned = (pull - unary).softmax(1)
            before = energy
            energy = float((assigned * (unary - pull + assigned.clamp(min=1e-20).log())).sum())
            if number > 1 and abs(energy - before) <= _TOLERANCE * abs(before):
                break
        return assigned

    def _relate(self, features: Tensor) -> Tensor:
        """Return affinities [N, N] of unit features [N, D]."""
        likeness = features @ features.T
        if self.affinity == "linear":
            return likeness
        if self.affinity == "knn":
            return link_nearest(likeness, self.neighbours)
        distance = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distance.topk(min(self.neighbours, len(features)), 1, largest=False).values[:, -1]
        width = nearest.mean().clamp(min=torch.finfo(features.dtype).eps)
        return torch.exp(-(distance.square()) / (2 * width.square()))
