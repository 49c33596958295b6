"""C-TPT (Yoon et al. 2024): test-time prompt tuning that keeps the class prototypes apart, for better calibration."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmr.core.functional.prompt_losses import measure_dispersion
from lmr.core.functional.views import marginal_entropy
from lmr.core.method import Preset
from lmr.core.prompts.prompt_method import PromptMethod
from lmr.core.registry import register

_SOURCE = "the authors' released code"


@register("ctpt")
class CTPT(PromptMethod):
    """TPT's entropy less the dispersion of the prototypes: their mean distance from their mean. One joint step.

    The same prototypes serve both terms, and gradient flows through both. There is no published weight for
    corruptions; the default is that of fine-grained sets.
    """

    label = "C-TPT"
    source = "Yoon et al. 2024"
    year = 2024
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE + ": weight of ImageNet, views without AugMix", batch_size=1),
        "imagenet": Preset({}, _SOURCE + ": weight of ImageNet, views without AugMix", batch_size=1),
        "fine-grained": Preset({"augmix": True}, _SOURCE + ": fine-grained sets, views with AugMix", batch_size=1),
        "natural-shifts": Preset({"dispersion": 20.0, "augmix": True}, _SOURCE + ": natural shifts", batch_size=1),
    }

    dispersion: float = 50.0  # the weight of the second term

    def prepare(self) -> None:
        self._require_not_negative("dispersion")
        super().prepare()

    def judge(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        return marginal_entropy(logits) - self.dispersion * measure_dispersion(prototypes)
