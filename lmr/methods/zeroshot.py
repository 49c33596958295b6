"""Zero-shot: the frozen classifier as it is, the line every method has to beat."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.method import Method, Mix, Prediction
from lmr.core.registry import register


@register("zeroshot")
class ZeroShotMethod(Method):
    """The frozen classifier; nothing adapts."""

    many_streams = True

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        with torch.no_grad():
            return Prediction(self.answer(images, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        return self.classifier.logits(self.classifier.cosines(self.classifier.features(images)))
