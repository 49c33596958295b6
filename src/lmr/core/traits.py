"""What a method declares about itself, in types, so that benchmarks, costs, reports and listings need no names."""

from __future__ import annotations

import enum
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lmr.core.functional.teachers import count_teachers

Emission = Literal["before", "after"]


class Role(enum.IntEnum):
    """The role of a method in a comparison; tables list methods in this order.

    Examples:
        >>> import lmr
        >>> lmr.find_method("zeroshot").role is lmr.Role.BASELINE
        True
    """

    BASELINE = 0  # the frozen classifier, to which every method is compared
    OTHER = 1
    OURS = 2  # the method of this package


class Trained(enum.Enum):
    """What a method adapts of the towers it names."""

    NORMS = "norms"
    CONTEXT = "context words"  # the vectors of the words before the class names, in the input of the text tower


class Tower(enum.Enum):
    """A part of the model that a method adapts.

    Examples:
        >>> import lmr
        >>> [tower.value for tower in lmr.find_method("bitta").towers]
        ['image', 'text']
    """

    IMAGE = "image"
    TEXT = "text"


class Scores(enum.Enum):
    """The meaning of a method's logits.

    Examples:
        >>> import lmr
        >>> lmr.find_method("tent").scores.value
        'cosines'
    """

    COSINES = "cosines"  # logit_scale * similarity + logit_bias, plus an offset the method can name
    LABELS = "labels"  # the logarithm of a distribution over labels
    VOTES = "votes"  # how many views of the image chose each class


@dataclass(frozen=True)
class Passes:
    """How often one step sends each image, and each class prompt, through its tower; averages over the batch.

    With ``blocks`` only ``whole`` of the forwards, the first, are through the whole tower. Every further one, and every
    backward, is through the last so many blocks. Prompts are encoded once for a whole batch, or with ``own_prompts``
    once for each image; of each prompt, ``shared_tokens`` are computed once for all classes. Where a ``share`` of the
    images learns, the backwards and the forwards beyond ``whole`` are theirs: ``of_batch`` counts whole images.

    Examples:
        >>> import lmr
        >>> method = lmr.create("tent", lmr.load("pocket").classifier(["red ring", "blue star"]))
        >>> method.count_passes()
        Passes(forwards=1, backwards=1, text_forwards=0.0, text_backwards=0.0, blocks=None, whole=1.0, ...)
    """

    forwards: float
    backwards: float = 0.0
    text_forwards: float = 0.0
    text_backwards: float = 0.0
    blocks: int | None = None
    whole: float = 1.0
    own_prompts: bool = False
    shared_tokens: int = 0
    share: float = 1.0

    def of_batch(self, images: int) -> Passes:
        """The same in steps on so many images of a stream, where the share that learns is rounded up."""
        if self.share == 1:
            return self
        more = count_teachers(images, self.share) / (images * self.share)
        again = self.forwards - self.whole
        return replace(self, forwards=self.whole + more * again, backwards=more * self.backwards)

    def count_texts(self, batch_size: int) -> tuple[float, float]:
        """Forwards and backwards of each class prompt in a batch of so many images."""
        times = batch_size if self.own_prompts else 1
        return times * self.text_forwards, times * self.text_backwards

    @property
    def total(self) -> float:
        """All passes through either tower."""
        return self.forwards + self.backwards + self.text_forwards + self.text_backwards


@dataclass(frozen=True)
class Preset:
    """A named configuration, the source of its values, and the batch size they were chosen for.

    Examples:
        >>> import lmr
        >>> preset = lmr.find_method("tent").presets["imagenet"]
        >>> preset.values, preset.batch_size
        ({'optimizer': 'sgd', 'lr': 0.00025}, 64)
    """

    values: dict[str, Any]
    source: str
    batch_size: int = 64


@dataclass(frozen=True)
class Switch:
    """A configuration that costs less, and the share of the method's gain over zero-shot that it was measured to keep.

    ``depth`` is the share of the tower's blocks that adapt, for methods with an argument ``blocks``.
    """

    values: dict[str, Any]
    kept: float
    depth: float | None = None

    def list_keys(self) -> set[str]:
        """The arguments that it changes."""
        return {*self.values, *(() if self.depth is None else ("blocks",))}


def read_switches(file: str) -> tuple[tuple[Switch, ...], str]:
    """The switches of the method in the Python ``file`` and what measured them, from the TOML file beside it."""
    table = tomllib.loads(Path(file).with_suffix(".toml").read_text("utf-8"))
    return tuple(Switch(**row) for row in table["switches"]), table["source"]
