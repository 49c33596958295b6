"""TransductiveMethod: the base of methods that answer the images of a batch together and keep nothing."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from lmr.core.card import Scores
from lmr.core.method import Method
from lmr.core.prediction import State, Step
from lmr.core.streams import Streams


@dataclass(kw_only=True, eq=False, repr=False)
class TransductiveMethod(Method):
    """A method whose distribution over labels for an image depends on the other images of the batch.

    Nothing is kept for the next batch, so ``predict`` gives the answer that ``step`` would give. Images of several
    streams are separate batches. Images without finite features do not enter the answers of the others. Logits are
    logarithms of the distributions. Subclasses define ``solve``.
    """

    memory_span = "batch"
    emission = "after"
    scores = Scores.LABELS
    export_reason = "its answer to an image depends on the other images of the batch"

    @abstractmethod
    def solve(self, features: Tensor) -> Tensor:
        """Return distributions over labels [N, C] of unit features [N, D]."""

    def logit_floor(self) -> float:
        """Return the logarithm of the smallest number of the precision."""
        return math.log(torch.finfo(self.classifier.prototypes.dtype).tiny)

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Answer the batch."""
        with torch.no_grad():
            return Step(self.answer(images, state, streams))

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return the logarithms of the distributions."""
        features = self.classifier.features(images)
        answers = features.new_full((len(features), self.classifier.classes), math.nan)
        for k in range(streams.count):
            own = (streams.index == k) & features.isfinite().all(1)
            if bool(own.any()):
                answers[own] = (self.solve(features[own]) + torch.finfo(features.dtype).tiny).log()
        return answers
