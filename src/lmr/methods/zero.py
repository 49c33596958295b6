"""ZERO (Farina et al. 2024): the views of an image that are most certain vote for its class."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.views import count_kept, count_votes
from lmr.core.method import Mix, Preset
from lmr.core.registry import register
from lmr.core.traits import Passes, Scores
from lmr.core.views.view_method import EpisodicMethod

_SOURCE = "the authors' released code"


@register("zero")
class ZERO(EpisodicMethod):
    """Votes of the most confident views: a softmax at temperature zero, averaged. Nothing is trained.

    The logits are the number of votes for each class. A tie is decided by the next views in the order of their
    confidence; where none of them votes for a tied class, by the largest logit in the first of them. The released code
    means the latter, but its last fallback inverts the bits of indices.
    """

    source = "Farina et al. 2024"
    year = 2024
    scores = Scores.VOTES
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE, batch_size=1),
        "paper": Preset({"keep": 0.1}, "Farina et al. 2024, as first published", batch_size=1),
    }

    keep: float = 0.3  # the share of the views that votes

    def prepare(self) -> None:
        if not 0 < self.keep <= 1:
            raise LmrError(f"Expected 'keep' of {self.name} above 0 and at most 1, got {self.keep}.")
        super().prepare()

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=self.views)

    def solve(self, images: Tensor, mix: Mix) -> tuple[Tensor, dict[str, Tensor]]:
        features = self.encode_views(images, mix)
        logits = torch.stack([self.classifier.logits(self.classifier.cosines(own)) for own in features])
        kept = count_kept(logits.shape[1], self.keep)
        sound = logits.isfinite().flatten(1).all(1)
        votes = torch.stack([count_votes(own, kept) if ok else own[0] for own, ok in zip(logits, sound, strict=True)])
        return votes, {"agreement": votes.amax(1) / kept}
