"""What a method declares about itself, in types, so that benchmarks, costs, reports and listings need no names."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

Emission = Literal["before", "after"]


class Role(enum.IntEnum):
    """The role of a method in a comparison; tables list methods in this order."""

    BASELINE = 0  # the frozen classifier, to which every method is compared
    OTHER = 1
    OURS = 2  # the method of this package


class Tower(enum.Enum):
    """A part of the model whose norms a method adapts."""

    IMAGE = "image"
    TEXT = "text"


class Scores(enum.Enum):
    """The meaning of a method's logits."""

    COSINES = "cosines"  # logit_scale * similarity + logit_bias, plus an offset the method can name
    LABELS = "labels"  # the logarithm of a distribution over labels


@dataclass(frozen=True)
class Passes:
    """How often one step sends each image, and each class prompt, through its tower; averages over the batch.

    With ``blocks`` only the first forward is through the whole tower. Every further one, and every backward, is
    through the last so many blocks.
    """

    forwards: float
    backwards: float = 0.0
    text_forwards: float = 0.0
    text_backwards: float = 0.0
    blocks: int | None = None
