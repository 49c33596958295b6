"""OGA, online Gaussian adaptation (Fuchs et al. 2025): Gaussians around a small memory of certain features."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.card import Card, Preset, Scores
from lmr.core.functional.gaussians import measure_likelihood
from lmr.core.functional.select import enter_best
from lmr.core.method import UNIT, Method, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "cfuchs2023/OGA: all datasets"
_FEW = 4  # entries per dimension up to which the covariance is shrunk

_CARD = Card(
    source="Fuchs et al. 2025",
    year=2025,
    presets={name: Preset({}, _SOURCE, batch_size=32) for name in ("default", "cifar10-c", "cifar100-c", "imagenet")},
)


@register("oga", _CARD)
class OGA(Method):
    """Gaussians of the classes with one covariance, fitted to a memory of features, times the zero-shot probabilities.

    An image enters the memory of its zero-shot class; a full class gives up its most uncertain entry for a more certain
    one. After the images of a batch have entered, in their order, a class with at least two entries has their sum
    divided by ``shots`` as its mean, others their text. Where some class has more than two entries, the precision is
    that of the residuals of all entries around the means of their classes: with n of them, A their covariance and D
    dimensions, D pinv((n - 1) A + tr(A) I) up to n = 4 D, then pinv(A). Before that it is D times the identity. The
    answer is p times the softmax of ``tau`` times the Gaussian log-likelihoods, normalised: after the batch entered,
    so the size of the batch matters.

    The mean of a class that is not full is too short, as it is divided by the capacity; this is as in the authors'
    code, and ``normalize=True`` gives it unit length. Their memory is in half precision, here in that of the
    prototypes. The state has a fixed size: C * shots unit features and a matrix D * D.
    """

    emission = "after"
    scores = Scores.LABELS
    export_reason = "its answer depends on Gaussians of image features, not on norms, prototypes and a bias alone"

    shots: int = 8  # features kept of a class
    tau: float = 0.05  # weight of the Gaussian log-likelihoods
    normalize: bool = False  # give the means of the classes unit length

    def prepare(self) -> None:
        self._require_count("shots", most=10**6)
        self._require_not_negative("tau")

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return an empty memory, the text as means, and a precision that knows nothing."""
        text = self.classifier.prototypes
        classes, width = text.shape
        return {
            "keys": text.new_zeros(classes, self.shots, width),
            "entropy": text.new_full((classes, self.shots), self._free),
            "means": text,
            "precision": width * torch.eye(width, dtype=text.dtype, device=text.device),
        }

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"keys": UNIT, "means": UNIT, "entropy": (-1e-3, None)}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        new = {key: value.clone() for key, value in state.items()}
        with torch.no_grad():
            features = self.classifier.features(images)
            entered = streams.sum(self._enter(features, new, streams))
            for k in entered.nonzero().flatten().tolist():
                self._fit({key: value[k] for key, value in new.items()})
            logits = self._answer(features, new, streams)
        held = (new["entropy"] < self._free).flatten(1).sum(1)
        return Step(logits, new, {"held": held, "entered": entered, "stepped": entered > 0})

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits with the present Gaussians; the images do not enter the memory."""
        return self._answer(self.classifier.features(images), state, streams)

    @property
    def _free(self) -> float:
        """The entropy of a free entry: above every real one, and finite."""
        return torch.finfo(self.classifier.prototypes.dtype).max

    def _enter(self, features: Tensor, new: State, streams: Streams) -> Tensor:
        """Let features [B, D] enter the memories in ``new``, in their order; return which did, int64 [B]."""
        p = self.classifier.logits(self.classifier.cosines(features)).softmax(1)
        uncertainty = -(p * (p + 1e-9).log()).sum(1)
        usable = uncertainty.double() < math.log(self.classifier.classes)
        fresh = (-uncertainty).where(usable, -math.inf)
        scores, places, samples, entered = enter_best(-new["entropy"], p.argmax(1), fresh, streams)
        new["entropy"], new["keys"] = -scores, new["keys"].index_put(places.unbind(1), features[samples])
        return entered.long()

    def _fit(self, row: State) -> None:
        """Fit the means and the precision of a stream to its memory, in place."""
        text, held = self.classifier.prototypes, row["entropy"] < self._free
        counts = held.sum(1)
        means = torch.where((counts >= 2).unsqueeze(1), row["keys"].sum(1) / self.shots, text)
        row["means"].copy_(F.normalize(means, dim=1) if self.normalize else means)
        if int(counts.max()) > 2:
            residuals = row["keys"][held] - row["means"][held.nonzero()[:, 0]]
            row["precision"].copy_(invert_covariance(residuals))

    def _answer(self, features: Tensor, state: State, streams: Streams) -> Tensor:
        """Return the logarithms of the answers [B, C] of unit features [B, D]."""
        logits = self.classifier.logits(self.classifier.cosines(features)).log_softmax(1)
        for k in range(streams.count):
            own = streams.index == k
            logits[own] += self.tau * measure_likelihood(features[own], state["means"][k], state["precision"][k])
        return logits.log_softmax(1)


def invert_covariance(residuals: Tensor) -> Tensor:
    """Return the precision [D, D] of residuals [n, D]: shrunk for at most 4 D of them, else the plain inverse."""
    count, width = residuals.shape
    centred = residuals - residuals.mean(0)
    covariance = centred.T @ centred / (count - 1)
    scale = 1
    if count <= _FEW * width:
        unit = torch.eye(width, dtype=covariance.dtype, device=covariance.device)
        covariance, scale = (count - 1) * covariance + covariance.trace() * unit, width
    inverse: Tensor = torch.linalg.pinv(covariance, hermitian=True)
    return scale * inverse
