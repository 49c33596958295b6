"""R-TPT (Sheng et al. 2025): test-time prompt tuning with entropies of single views, and views that vote by weight."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.losses import entropy
from lmr.core.functional.views import weigh_views
from lmr.core.method import Preset
from lmr.core.prompts.prompt_method import PromptMethod
from lmr.core.registry import register


@register("rtpt")
class RTPT(PromptMethod):
    """One step on the mean entropy of the confident views, not the entropy of their mean; all views answer.

    The answer is the mean of the logits of all views with the learnt context. A view's weight grows with its mean
    cosine with its nearest views, of which at most V - 1 exist. The view itself is always left out of them. The
    released code leaves it out only where its computed cosine is 1 or more, so that there rounding decides.
    """

    label = "R-TPT"
    source = "Sheng et al. 2025"
    year = 2025
    presets: ClassVar[dict[str, Preset]] = {"default": Preset({}, "the authors' released code", batch_size=1)}

    neighbours: int = 20
    temperature: float = 0.01  # of the weights

    def prepare(self) -> None:
        smallest = torch.finfo(self.classifier.prototypes.dtype).tiny
        if self.neighbours < 1:
            raise LmrError(f"Expected 'neighbours' of rtpt to be at least 1, got {self.neighbours}.")
        if not smallest <= self.temperature < float("inf"):
            raise LmrError(f"Expected 'temperature' of rtpt to be finite and above 0, got {self.temperature}.")
        super().prepare()

    def judge(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        return entropy(logits).mean()

    def answer_image(self, features: Tensor, prototypes: Tensor) -> Tensor:
        weights = weigh_views(features, self.neighbours, self.temperature)
        return weights @ self.compare(features, prototypes)
