"""DOTA (Han et al. 2025): Gaussians of the classes, with a covariance each, learnt from every image of the stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.bases.views import ViewMethod
from lmr.core.card import Card, Emission, Preset
from lmr.core.functional.gaussians import measure_likelihood
from lmr.core.functional.ordered import adapt_in_order, answer_in_order
from lmr.core.functional.select import count_kept, rank_confident
from lmr.core.method import UNIT, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "skylineeeeen/DOTA"
_START = 0.001  # of every coordinate of a mean
_MIXED = {"views": 64, "augmix": True}
_VALUES = {  # of the datasets in the authors' configurations, with 64 views where they have them
    "imagenet": {"eta": 0.2, "rho": 0.005},
    "imagenet-a": {"eta": 0.5, "rho": 0.02} | _MIXED,
    "imagenet-r": {"eta": 0.3, "rho": 0.0025} | _MIXED,
    "imagenet-sketch": {"eta": 0.8, "rho": 0.03} | _MIXED,
    "imagenet-v2": {"eta": 0.1, "rho": 0.01} | _MIXED,
    "caltech101": {"eta": 0.3, "rho": 0.02, "epsilon": 0.002},
    "dtd": {"eta": 0.3, "rho": 0.02},
    "eurosat": {"eta": 3.0, "rho": 0.05},
    "aircraft": {"eta": 0.2, "rho": 0.01},
    "food101": {"eta": 0.1, "rho": 0.01, "epsilon": 4e-5},
    "flowers102": {"eta": 0.2, "rho": 0.02},
    "pets": {"eta": 0.3, "rho": 0.02},
    "cars": {"eta": 0.3, "rho": 0.01},
    "sun397": {"eta": 0.2, "rho": 0.01},
    "ucf101": {"eta": 0.4, "rho": 0.02},
}

_CARD = Card(
    source="Han et al. 2025",
    year=2025,
    presets={
        "default": Preset({}, _SOURCE + ": the values of DTD and Pets", batch_size=1),
        **{name: Preset(dict(values), _SOURCE, batch_size=1) for name, values in _VALUES.items()},
    },
)


@register("dota", _CARD)
class DOTA(ViewMethod):
    """Gaussians of the classes that every image moves by its zero-shot probabilities, and whose scores join the logits.

    A class has a mean m, at first 0.001 in every coordinate, a covariance, at first ``sigma`` times the identity, and a
    count n, at first 1. An image with feature z gets the logits of the text plus w (z' L m - m' L m / 2), where L is
    the inverse of (1 - epsilon) times the mean covariance of all classes plus epsilon times the identity (of ``sigma``
    times the identity before the first image), and w = ``rho`` times the mean count, at most ``eta``. Then it joins
    the mean and the covariance of each class with the weight of its zero-shot probability, the covariance around the
    old mean. Images are served in order, one at a time; a batch only encodes them together.

    With ``views`` above 1 the most certain ones, a share ``keep``, count: their logits and features are averaged for
    the answer, ``rho`` is divided by their number, and each joins the Gaussians.

    The state has a fixed size, but a large one: a covariance of D * D numbers for each of C classes, 1 GB for a stream
    of CLIP with 1000 classes. Only their mean is used, but each has its own count, so they cannot be merged.
    """

    emission: ClassVar[Emission] = "before"
    export_reason = "its answer depends on Gaussians of image features, not on norms, prototypes and a bias alone"

    epsilon: float = 1e-4  # share of the identity in the covariance that is inverted
    sigma: float = 2e-3  # variance of a class before the first image
    eta: float = 0.3  # largest weight of the Gaussians
    rho: float = 0.02  # growth of their weight with the mean count of the classes
    views: int = 1  # views of each image, the image itself included
    keep: float = 0.1  # share of the views that count
    augmix: bool = False  # AugMix of the crops, as published for ImageNet-A, -R, -Sketch and -V2

    def prepare(self) -> None:
        super().prepare()
        self._require_between(0, 1, "epsilon")
        self._require_between(1e-12, 1e12, "sigma")
        self._require_not_negative("eta", "rho")
        self._require_between(1e-9, 1, "keep")

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return Gaussians that know nothing."""
        text = self.classifier.prototypes
        classes, width = text.shape
        unit = torch.eye(width, dtype=text.dtype, device=text.device)
        own = {
            "means": torch.full_like(text, _START),
            "counts": text.new_ones(classes),
            "covariances": (self.sigma * unit).expand(classes, -1, -1),
            "precision": unit / self.sigma,
        }
        return {**super().begin(), **own}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"means": UNIT, "counts": (0.999, None)}

    def describe(self, state: State) -> Mapping[str, Tensor]:
        return {"weight": self._weigh(state["counts"].mean(1))}

    def _weigh(self, count: Tensor, views: int = 1) -> Tensor:
        """Return the weight of the Gaussians at a mean count of the classes."""
        return (self.rho * count / views).clamp(max=self.eta)

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        features = self._encode_views(images, state, streams)
        return adapt_in_order(features, state, streams, self.look, self.learn)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        return answer_in_order(self._encode_views(images, state, streams), state, streams, self.look)

    def look(self, views: Tensor, row: State) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the logits [C] of an image; features [n, D] and probabilities [n, C] of the views that count."""
        logits = self.classifier.logits(self.classifier.cosines(views))
        best = rank_confident(logits)[: count_kept(len(views), self.keep)]
        views, logits = views[best], logits[best]
        gaussian = measure_likelihood(views.mean(0, keepdim=True), row["means"], row["precision"])[0]
        return logits.mean(0) + self._weigh(row["counts"].mean(), len(views)) * gaussian, (views, logits.softmax(1))

    def learn(self, found: tuple[Tensor, Tensor], row: State) -> Tensor:
        """Let features [n, D] join the Gaussians of a stream with the weights p [n, C]."""
        features, p = found
        total = row["counts"] + p.sum(0)
        kept = row["counts"] / total
        scaled = (features.unsqueeze(1) - row["means"]) * (p / total).sqrt().unsqueeze(2)
        row["covariances"].mul_(kept.view(-1, 1, 1)).baddbmm_(scaled.permute(1, 2, 0), scaled.permute(1, 0, 2))
        row["means"].mul_(kept.unsqueeze(1)).add_((p / total).T @ features)
        row["counts"].copy_(total)
        mean = row["covariances"].mean(0)
        unit = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        inverse, failed = torch.linalg.inv_ex((1 - self.epsilon) * mean + self.epsilon * unit)
        row["precision"].copy_(torch.where(failed == 0, inverse, torch.nan))  # then the step is refused
        return torch.ones_like(row["seen"])
