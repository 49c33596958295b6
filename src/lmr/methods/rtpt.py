"""R-TPT (Sheng et al. 2025): test-time prompt tuning with entropies of single views, and views that vote by weight."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.bases.prompts import PromptMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy
from lmr.core.registry import register

_CARD = Card(
    label="R-TPT",
    source="Sheng et al. 2025",
    year=2025,
    presets={"default": Preset({}, "the authors' released code", batch_size=1)},
)


@register("rtpt", _CARD)
class RTPT(PromptMethod):
    """One step on the mean entropy of the confident views, not the entropy of their mean; all views answer.

    The answer is the mean of the logits of all views with the learnt context. A view's weight grows with its mean
    cosine with its nearest views, of which at most V - 1 exist. The view itself is always left out of them. The
    released code leaves it out only where its computed cosine is 1 or more, so that there rounding decides.
    """

    neighbours: int = 20  # nearest views that decide the weight of a view
    temperature: float = 0.01  # temperature of the weights

    def prepare(self) -> None:
        self._require_count("neighbours", most=10**6)
        self._require_between(1e-30, 1e30, "temperature")
        super().prepare()

    def loss(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        return entropy(logits).mean()

    def _answer_image(self, features: Tensor, prototypes: Tensor) -> Tensor:
        weights = weigh_views(features, self.neighbours, self.temperature)
        return weights @ self._compare(features, prototypes)


def weigh_views(features: Tensor, neighbours: int, temperature: float) -> Tensor:
    """Return weights [..., V] of unit features [..., V, D]: views that agree with their nearest views weigh most.

    The softmax over the views of r / temperature; r is the mean of a view's largest cosines with others, itself
    excluded. A single view has the weight 1.
    """
    views = features.shape[-2]
    if views == 1:
        return features.new_ones(features.shape[:-1])
    cosines = features @ features.transpose(-1, -2)
    itself = torch.eye(views, dtype=torch.bool, device=features.device)
    near = cosines.masked_fill(itself, -torch.inf).topk(min(neighbours, views - 1), dim=-1).values.mean(-1)
    return ((near - near.amax(-1, keepdim=True)) / temperature).softmax(-1)
