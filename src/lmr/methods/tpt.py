"""TPT, test-time prompt tuning (Shu et al. 2022): a context for each image, on which its confident views agree."""

from __future__ import annotations

from torch import Tensor

from lmr.core.bases.prompts import PromptMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import marginal_entropy
from lmr.core.registry import register

_SOURCE = "the authors' released code"

_CARD = Card(
    source="Shu et al. 2022",
    year=2022,
    presets={
        "default": Preset({}, _SOURCE + ": the ImageNet family, views without AugMix", batch_size=1),
        "imagenet": Preset({}, _SOURCE + ": the ImageNet family, views without AugMix", batch_size=1),
        "fine-grained": Preset({"augmix": True}, _SOURCE + ": fine-grained sets, views with AugMix", batch_size=1),
    },
)


@register("tpt", _CARD)
class TPT(PromptMethod):
    """One step on the entropy of the mean prediction of an image's most confident views, along the context alone.

    The views are selected once, before the step. As prompt and optimiser begin anew with each image, every number of
    the context moves by about ``lr``, whatever the scale of the loss. The answer is the one after the step, for the
    image itself. The authors crop images at their original resolution; here views are cut from the images that the
    model sees, and can be given instead.
    """

    def loss(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        return marginal_entropy(logits)
