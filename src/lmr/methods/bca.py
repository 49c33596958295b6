"""BCA (Zhou et al. 2025): Bayesian updates of the class embeddings and of what they say about the classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.views import ViewMethod
from lmr.core.card import Card, Emission, Preset, Scores
from lmr.core.functional.losses import entropy
from lmr.core.functional.ordered import adapt_in_order, answer_in_order
from lmr.core.method import COUNTS, SHARES, UNIT, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "walawalagoose/TTABC, a port of the authors' code: ImageNet"
_EPS = 1e-12
_KEPT = 0.1  # share of the views that count

_CARD = Card(
    source="Zhou et al. 2025",
    year=2025,
    presets={
        "default": Preset({}, _SOURCE, batch_size=1),
        "cifar10-c": Preset({}, _SOURCE + "; no others are known", batch_size=1),
        "cifar100-c": Preset({}, _SOURCE + "; no others are known", batch_size=1),
        "imagenet": Preset({}, _SOURCE, batch_size=1),
        "views": Preset({"views": 64}, _SOURCE + ", with views", batch_size=1),
    },
)


@register("bca", _CARD)
class BCA(ViewMethod):
    """Class embeddings that move to confident images, and a prior for each that moves to their posteriors.

    An image has q = softmax of its logits with the embeddings, and the posterior f = q P with a matrix P that begins as
    the identity. The answer is log(f + 1e-12), before the image changes anything. If the largest f, that of class y, is
    above ``tau1``, the image joins the mean that the embedding of y is, which counts as ``c1`` images at first, and the
    mean is normalised; above ``tau2`` f joins the mean that row y of P is, which counts as ``c2``. The paper takes y
    from q, the code from f, as here. Images are served in order, one at a time; a batch only encodes them together.

    With ``views`` above 1, the tenth of them with the lowest entropy counts: their logits are averaged before the
    softmax, their features before the update, without normalising again. Values for other datasets are not known; a
    small ``c1`` collapses to one class.
    """

    emission: ClassVar[Emission] = "before"
    scores = Scores.LABELS
    export_reason = "its answer mixes classes by a matrix, not by prototypes and a bias alone"

    tau1: float = 0.05  # posterior above which an image moves its class embedding
    c1: int = 20000  # number of images that an embedding counts for at first
    tau2: float = 0.65  # posterior above which an image moves the prior of its class
    c2: int = 1  # number of images that a row of P counts for at first
    views: int = 1  # views of each image, the image itself included

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("tau1", "c1", "tau2", "c2")

    def logit_floor(self) -> float:
        return math.log(_EPS)

    def begin(self) -> Mapping[str, Tensor | int]:
        prototypes = self.classifier.prototypes
        counts = torch.full((len(prototypes),), self.c1, dtype=torch.int64, device=prototypes.device)
        prior = torch.eye(len(prototypes), dtype=prototypes.dtype, device=prototypes.device)
        own = {"means": prototypes, "mean_counts": counts, "prior": prior}
        return {**super().begin(), **own, "prior_counts": torch.full_like(counts, self.c2)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {"means": UNIT, "mean_counts": COUNTS, "prior": SHARES, "prior_counts": COUNTS}
        return super().ranges(state) | own

    def _count(self, sums: Tensor) -> dict[str, Tensor]:
        return {"means": sums[:, 0], "priors": sums[:, 1]}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        features = self._encode_views(images, state, streams)
        return adapt_in_order(features, state, streams, self.look, self.learn, self._count)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        return answer_in_order(self._encode_views(images, state, streams), state, streams, self.look)

    def look(self, views: Tensor, row: State) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        logits = self.classifier.logits(self.classifier.cosines(views, row["means"]))
        if len(views) > 1:
            best = entropy(logits).argsort(stable=True)[: max(1, int(_KEPT * len(views)))]
            views, logits = views[best], logits[best]
        posterior = logits.mean(0).softmax(0) @ row["prior"]
        return (posterior + _EPS).log(), (posterior, views.mean(0))

    def learn(self, found: tuple[Tensor, Tensor], row: State) -> Tensor:
        """Move the embedding and the prior of the most probable class; return which of them moved."""
        posterior, feature = found
        largest, label = posterior.max(0, keepdim=True)
        moves = torch.cat([largest > self.tau1, largest > self.tau2])
        named = (("means", "mean_counts", feature), ("prior", "prior_counts", posterior))
        for moved, (key, counted, value) in zip(moves, named, strict=True):
            own, count = row[key].index_select(0, label), row[counted].index_select(0, label)
            mean = (count.unsqueeze(1) * own + value) / (count.unsqueeze(1) + 1)
            mean = F.normalize(mean, dim=1) if key == "means" else mean
            row[key].index_copy_(0, label, torch.where(moved, mean, own))
            row[counted].index_add_(0, label, moved.long().unsqueeze(0))
        return moves
