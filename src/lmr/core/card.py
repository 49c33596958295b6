"""Card: what tables, listings and docs say about a method, and the types it is written with."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Emission = Literal["before", "after"]


class Role(enum.IntEnum):
    """The role of a method in a comparison; tables list methods in this order."""

    BASELINE = 0  # the frozen classifier, to which every method is compared
    OTHER = 1
    OURS = 2  # the method of this package


class Tower(enum.Enum):
    """A part of the model that a method adapts."""

    IMAGE = "image"
    TEXT = "text"


class Scores(enum.Enum):
    """The meaning of a method's logits."""

    COSINES = "cosines"  # logit_scale * similarity + logit_bias, plus the method's ``logit_offset``
    LABELS = "labels"  # the logarithm of a distribution over labels
    VOTES = "votes"  # the number of views of the image that chose each class


@dataclass(frozen=True)
class Preset:
    """A named configuration, the source of its values, and the batch size they were chosen for."""

    values: dict[str, Any]
    source: str
    batch_size: int = 64


@dataclass(frozen=True)
class Card:
    """The facts that tables, listings and docs show of a method. The code of the method does not need it.

    Examples:
        >>> import lmr
        >>> card = lmr.find_method("lmr").card
        >>> card.label, card.source, sorted(card.presets)[:2]
        ('LMR', 'Huang et al. 2026', ['cifar10-c', 'cifar100-c'])
    """

    label: str = ""  # name in tables; ``register`` fills in the method's name in capitals
    source: str = ""  # authors and year of the publication
    year: int = 9999  # of the publication; tables are ordered by it
    role: Role = Role.OTHER
    in_paper: bool = False  # compared in the paper of LMR; "paper" in plans names these methods
    presets: Mapping[str, Preset] = field(default_factory=lambda: {"default": Preset({}, "the method's own defaults")})
    parts: tuple[str, ...] = ()  # boolean arguments that switch parts of the method off, for ablations
    swept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name of a sweep -> arguments that vary in it
    former: Mapping[str, Any] = field(default_factory=dict)  # arguments it once had -> defaults
    source_images: int = 0  # clean images for ``fit_source`` before the stream, where there are any
