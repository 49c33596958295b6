"""BCA (Zhou et al. 2025): Bayesian updates of the class embeddings and of what they say about the classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.functional.losses import entropy
from lmr.core.method import COUNTS, SHARES, UNIT, Mix, Prediction, Preset, Ranges
from lmr.core.registry import register
from lmr.core.traits import Emission, Passes, Scores
from lmr.core.views.view_method import ViewMethod

_SOURCE = "walawalagoose/TTABC, a port of the authors' code: ImageNet"
_EPS = 1e-12
_KEPT = 0.1  # share of the views that count


@register("bca")
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

    source = "Zhou et al. 2025"
    year = 2025
    emission: ClassVar[Emission] = "before"
    scores = Scores.LABELS
    not_frozen_because = "its answer mixes classes by a matrix, not by prototypes and a bias alone"
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE, batch_size=1),
        "cifar10-c": Preset({}, _SOURCE + "; no others are known", batch_size=1),
        "cifar100-c": Preset({}, _SOURCE + "; no others are known", batch_size=1),
        "imagenet": Preset({}, _SOURCE, batch_size=1),
        "views": Preset({"views": 64}, _SOURCE + ", with views", batch_size=1),
    }

    tau1: float = 0.05
    c1: int = 20000  # how many images an embedding is worth at first
    tau2: float = 0.65
    c2: int = 1  # and a row of P
    views: int = 1

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("tau1", "c1", "tau2", "c2")

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=self.views)

    def logit_floor(self) -> float:
        return math.log(_EPS)

    def begin(self, streams: int) -> dict[str, Tensor]:
        prototypes = self.classifier.prototypes
        classes = len(prototypes)
        counts = torch.full((streams, classes), self.c1, dtype=torch.int64, device=prototypes.device)
        prior = torch.eye(classes, dtype=prototypes.dtype, device=prototypes.device)
        own = {"means": prototypes.repeat(streams, 1, 1), "mean_counts": counts}
        own |= {"prior": prior.repeat(streams, 1, 1), "prior_counts": torch.full_like(counts, self.c2)}
        return super().begin(streams) | own

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {"means": UNIT, "mean_counts": COUNTS, "prior": SHARES, "prior_counts": COUNTS}
        return super().ranges(state) | own

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        answers, changed = [], torch.zeros(len(images), 2, dtype=torch.int64, device=images.device)
        with torch.no_grad():
            features = self.encode_views(images, mix)
            for number, (views, stream) in enumerate(zip(features, mix.active[mix.index].tolist(), strict=True)):
                posterior, feature = self._judge(views, stream)
                answers.append((posterior + _EPS).log())
                changed[number] = torch.tensor(self._update(posterior, feature, stream))
            self.put({"seen": self.take(mix, "seen")["seen"] + mix.sizes}, mix)
        moved = mix.sum(changed)
        report = {"means": moved[:, 0], "priors": moved[:, 1], "stepped": moved.any(1)}
        return Prediction(torch.stack(answers), self.summarise(report, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """Logits with the present embeddings and matrix."""
        pairs = zip(self.encode_views(images, mix), mix.active[mix.index].tolist(), strict=True)
        return torch.stack([(self._judge(views, stream)[0] + _EPS).log() for views, stream in pairs])

    def _judge(self, views: Tensor, stream: int) -> tuple[Tensor, Tensor]:
        """The posterior [C] of an image with views [V, D], and the feature [D] that it updates with."""
        logits = self.classifier.logits(views @ self.state["means"][stream].T)
        if len(views) > 1:
            best = entropy(logits).argsort(stable=True)[: max(1, int(_KEPT * len(views)))]
            views, logits = views[best], logits[best]
        return logits.mean(0).softmax(0) @ self.state["prior"][stream], views.mean(0)

    def _update(self, posterior: Tensor, feature: Tensor, stream: int) -> tuple[bool, bool]:
        """Move the embedding and the prior of the most probable class; whether each was moved."""
        largest, label = posterior.max(0)
        if not bool(posterior.isfinite().all()):
            return False, False
        first, second = bool(largest > self.tau1), bool(largest > self.tau2)
        if first:
            means, counts = self.state["means"][stream], self.state["mean_counts"][stream]
            means[label] = F.normalize((counts[label] * means[label] + feature) / (counts[label] + 1), dim=0)
            counts[label] += 1
        if second:
            prior, counts = self.state["prior"][stream], self.state["prior_counts"][stream]
            prior[label] = (counts[label] * prior[label] + posterior) / (counts[label] + 1)
            counts[label] += 1
        return first, second
