"""The image tower of a measured model as transformers runs it."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from lmr.models.towers.image import VisionTower
from lmr.models.transformers_clip import describe_image, rename_weights


class _Stem(nn.Sequential):
    """The layers of a stem, with what transformers asks a patch layer for."""

    @property
    def weight(self) -> Tensor:
        return next(self.parameters())


def build_transformers_vision(image: VisionTower) -> Any:
    """Return a CLIPVisionModelWithProjection in float32 with the weights of an image tower.

    A stem of convolutions has no counterpart there: its layers replace the patch layer as they are.
    """
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    model: Any = CLIPVisionModelWithProjection(CLIPVisionConfig(**describe_image(image.config)))
    if not image.is_clip:
        model.vision_model.embeddings.patch_embedding = _Stem(*copy.deepcopy(image.patches).float().cpu().children())
    model.load_state_dict(rename_weights(image, "image"))
    return model.eval().requires_grad_(False)
