"""ZERO (Farina et al. 2024): the views of an image that are most certain vote for its class."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.bases.views import EpisodicMethod
from lmr.core.card import Card, Preset, Scores
from lmr.core.functional.select import count_kept, rank_confident
from lmr.core.prediction import State
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "the authors' released code"

_CARD = Card(
    source="Farina et al. 2024",
    year=2024,
    presets={
        "default": Preset({}, _SOURCE, batch_size=1),
        "paper": Preset({"keep": 0.1}, "Farina et al. 2024, as first published", batch_size=1),
    },
)


@register("zero", _CARD)
class ZERO(EpisodicMethod):
    """Votes of the most confident views: a softmax at temperature zero, averaged. Nothing is trained.

    The logits are the number of votes for each class. A tie is decided by the next views in the order of their
    confidence; where none of them votes for a tied class, by the largest logit in the first of them. The released code
    means the latter, but its last fallback inverts the bits of indices.
    """

    scores = Scores.VOTES

    keep: float = 0.3  # share of the views that vote

    def prepare(self) -> None:
        self._require_between(1e-9, 1, "keep")
        super().prepare()

    def solve(self, images: Tensor, state: State, streams: Streams) -> tuple[Tensor, dict[str, Tensor]]:
        features = self._encode_views(images, state, streams)
        logits = torch.stack([self.classifier.logits(self.classifier.cosines(own)) for own in features])
        kept = count_kept(logits.shape[1], self.keep)
        votes = torch.stack([count_votes(own, kept) for own in logits])
        votes = votes + 0 * logits.sum((1, 2)).unsqueeze(1)  # views without finite logits have no valid votes
        return votes, {"agreement": votes.amax(1) / kept}


def count_votes(logits: Tensor, kept: int) -> Tensor:
    """Return the answer [C] to the logits [V, C] of one image: the votes of its ``kept`` most confident views.

    Where classes tie for the most votes, the other views are asked in the order of rising entropy: the first that votes
    for a tied class decides. If none does, it is the tied class with the largest logit in the first of them. Without
    other views the tie stays.
    """
    order, classes = rank_confident(logits), logits.shape[-1]
    chosen = logits.argmax(-1)[order]
    votes = torch.bincount(chosen[:kept], minlength=classes).to(logits.dtype)
    tied = votes == votes.amax()
    if int(tied.sum()) > 1 and kept < len(order):
        rest = chosen[kept:]
        deciding = tied[rest].nonzero().flatten()
        first = logits[order[kept]].masked_fill(~tied, -torch.inf)
        votes[rest[deciding[0]] if len(deciding) else first.argmax()] += 1
    return votes
