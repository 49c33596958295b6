"""MTA (Zanella & Ben Ayed 2024): the mode of the features of an image's views, found by a robust mean shift."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.functional.mean_shift import find_mode
from lmr.core.method import Mix, Preset
from lmr.core.registry import register
from lmr.core.traits import Passes
from lmr.core.views.view_method import EpisodicMethod


@register("mta")
class MTA(EpisodicMethod):
    """Mean shift over the views of an image, with a learnt weight for each view. Nothing is trained.

    Views that are far from the mode, or whose probabilities agree with few others, lose weight. The answer is that of
    the mode in place of the image's feature.
    """

    source = "Zanella & Ben Ayed 2024"
    year = 2024
    presets: ClassVar[dict[str, Preset]] = {"default": Preset({}, "the authors' released code", batch_size=1)}

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=self.views)

    def solve(self, images: Tensor, mix: Mix) -> tuple[Tensor, dict[str, Tensor]]:
        clip, features = self.classifier, self.encode_views(images, mix)
        modes = torch.stack([find_mode(own, clip.logits(clip.cosines(own)).softmax(1)) for own in features])
        logits = torch.cat([clip.logits(clip.cosines(mode)) for mode in modes.unsqueeze(1)])
        return logits, {"shift": torch.linalg.vector_norm(modes - features[:, 0], dim=1)}
