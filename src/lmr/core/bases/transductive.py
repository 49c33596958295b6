"""TransductiveMethod: the base of methods that answer the images of a batch together and keep nothing."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lmr.core.method import Method, Mix, Prediction
from lmr.core.traits import Passes, Scores


@dataclass(kw_only=True, eq=False, repr=False)
class TransductiveMethod(Method):
    """A method that gives every image of a batch a distribution over labels which depends on the others.

    Nothing stays for the next batch, so ``predict`` gives the answer that ``step`` would give. Images of several
    streams are separate batches. Images without finite features are answered with NaN and are left out for the others.
    Logits are logarithms of the distributions. Subclasses write ``solve``.
    """

    many_streams = True
    restarts = True
    emission = "after"
    scores = Scores.LABELS
    not_frozen_because = "its answer to an image depends on the other images of the batch"

    @abstractmethod
    def solve(self, features: Tensor) -> Tensor:
        """Distributions over labels [N, C] of unit features [N, D]."""

    def count_passes(self, learning: float = 1.0) -> Passes:
        """One forward."""
        return Passes(forwards=1)

    def logit_floor(self) -> float:
        """The logarithm of the smallest number of the precision."""
        return math.log(torch.finfo(self.classifier.prototypes.dtype).tiny)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        """Solve the batch."""
        return Prediction(self.answer(images, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """The same."""
        with torch.no_grad():
            features = self.classifier.features(images)
            answers = features.new_full((len(features), self.classifier.classes), math.nan)
            for k in range(mix.count):
                own = (mix.index == k) & features.isfinite().all(1)
                if bool(own.any()):
                    answers[own] = (self.solve(features[own]) + torch.finfo(features.dtype).tiny).log()
        return answers
