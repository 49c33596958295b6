"""Zero-shot: the frozen classifier, the baseline of all methods."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.card import Card, Role
from lmr.core.method import Method
from lmr.core.prediction import AdaptedParameters, State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_CARD = Card(
    label="zero-shot",
    source="Radford et al. 2021",
    year=2021,
    role=Role.BASELINE,
    in_paper=True,
)


@register("zeroshot", _CARD)
class ZeroShotMethod(Method):
    """The frozen classifier; nothing adapts."""

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        with torch.no_grad():
            return Step(self.classifier(images))

    def export(self, state: State) -> AdaptedParameters:
        return AdaptedParameters(self.classifier.prototypes.clone())
