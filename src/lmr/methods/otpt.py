"""O-TPT (Sharifdeen et al. 2025): test-time prompt tuning that makes the class prototypes orthogonal."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lmr.core.bases.prompts import PromptMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import marginal_entropy
from lmr.core.registry import register

_SOURCE = "the authors' scripts"

_CARD = Card(
    label="O-TPT",
    source="Sharifdeen et al. 2025",
    year=2025,
    presets={
        "default": Preset({}, _SOURCE + ": weight of fine-grained sets, views without AugMix", batch_size=1),
        "fine-grained": Preset({"augmix": True}, _SOURCE + ": fine-grained sets, views with AugMix", batch_size=1),
        "natural-shifts": Preset({"orthogonality": 2.0}, _SOURCE + ": natural shifts", batch_size=1),
    },
)


@register("otpt", _CARD)
class OTPT(PromptMethod):
    """TPT's entropy and a penalty on the cosines between prototypes.

    Code and paper differ. The code (``penalty="rows"``) averages the lengths of the rows of the matrix of cosines, less
    one; the paper (``penalty="frobenius"``) has the squared Frobenius norm of that matrix less the identity. The
    published weights belong to the code.
    """

    orthogonality: float = 18.0  # weight of the penalty
    penalty: Literal["rows", "frobenius"] = "rows"  # the penalty of the code, or that of the paper

    def prepare(self) -> None:
        self._require_not_negative("orthogonality")
        super().prepare()

    def loss(self, logits: Tensor, prototypes: Tensor) -> Tensor:
        measure = measure_overlap if self.penalty == "rows" else measure_overlap_squared
        return marginal_entropy(logits) + self.orthogonality * measure(prototypes)


def measure_overlap(prototypes: Tensor) -> Tensor:
    """Return the penalty as its code computes it: the mean over the classes of |A_i| - 1, A the cosines of prototypes.

    The code maps row i of A to |A_i| e_i by a Householder reflection for each class, subtracts the identity and
    averages the lengths of the rows. A reflection is exact, so that this is all that is left of it.
    """
    lengths: Tensor = torch.linalg.vector_norm(prototypes @ prototypes.T, dim=1)
    return (lengths - 1).mean()


def measure_overlap_squared(prototypes: Tensor) -> Tensor:
    """Return the penalty as its paper writes it: the squared Frobenius norm of A - I."""
    return (prototypes @ prototypes.T - torch.eye(len(prototypes)).to(prototypes)).square().sum()
