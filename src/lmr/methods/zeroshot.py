"""Zero-shot: the frozen classifier, the baseline of all methods."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.batch import FrozenAnswer
from lmr.core.method import Method, Mix, Prediction
from lmr.core.registry import register
from lmr.core.traits import Passes, Role


@register("zeroshot")
class ZeroShotMethod(Method):
    """The frozen classifier; nothing adapts."""

    label = "zero-shot"
    source = "Radford et al. 2021"
    year = 2021
    in_paper = True
    needs_images = False
    role = Role.BASELINE
    many_streams = True

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=1)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        with torch.no_grad():
            return Prediction(self.answer(images, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        return self.classifier.logits(self.classifier.cosines(self.classifier.features(images)))

    def settle(self, stream: int) -> FrozenAnswer:
        return FrozenAnswer(self.classifier.prototypes.clone())
