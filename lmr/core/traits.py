"""What a method declares of itself, in types: benchmarks, costs, reports and listings need not know its name."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

Emission = Literal["before", "after"]


class Role(enum.IntEnum):
    """The place of a method in a comparison; tables list them in this order."""

    BASELINE = 0  # the frozen classifier, which every method has to beat
    OTHER = 1
    OURS = 2  # the method that others are compared with


class Tower(enum.Enum):
    """A part of the model whose norms a method adapts."""

    IMAGE = "image"
    TEXT = "text"


class Scores(enum.Enum):
    """What the logits of a method stand for."""

    COSINES = "cosines"  # logit_scale * similarity + logit_bias, plus an offset the method can name
    LABELS = "labels"  # the logarithm of a distribution over labels


@dataclass(frozen=True)
class Passes:
    """How often one step sends each image, and each class prompt, through its tower; averages over the batch."""

    forwards: float
    backwards: float = 0.0
    text_forwards: float = 0.0
    text_backwards: float = 0.0
