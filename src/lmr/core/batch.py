"""What a method is given with a batch, the streams of its images, and what it gives: an answer, or a frozen one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmr.core.functional.by_stream import all_by_stream, mean_by_stream, sum_by_stream
from lmr.core.traits import Tower


@dataclass(frozen=True)
class Prediction:
    """The answer to a batch: logits [B, C], and ``info``, what happened, in plain Python values.

    Examples:
        >>> import lmr, torch
        >>> answer = lmr.Prediction(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        >>> answer.labels
        tensor([0, 1])
        >>> answer.probabilities[0]
        tensor([0.8808, 0.1192])
    """

    logits: Tensor
    info: dict[str, Any] = dataclasses.field(default_factory=dict)

    @cached_property
    def probabilities(self) -> Tensor:
        """Softmax of the logits: [B, C]."""
        return self.logits.softmax(1)

    @cached_property
    def labels(self) -> Tensor:
        """The most probable class of each image: int64 [B]."""
        return self.logits.argmax(1)


@dataclass(frozen=True)
class Mix:
    """The streams of a batch: ``active`` [A] sorted stream ids, ``index`` [B] which of them each sample is of.

    Examples:
        >>> import lmr, torch
        >>> mix = lmr.Mix(active=torch.tensor([2, 7]), index=torch.tensor([0, 1, 1]))  # of the streams 2, 7 and 7
        >>> mix.sizes
        tensor([1, 2])
        >>> mix.mean(torch.tensor([1.0, 3.0, 5.0]))
        tensor([1., 4.])
    """

    active: Tensor
    index: Tensor

    @property
    def count(self) -> int:
        """A, the number of streams in the batch."""
        return len(self.active)

    @property
    def sizes(self) -> Tensor:
        """The number of samples of each stream: [A]."""
        return torch.bincount(self.index, minlength=self.count)

    def pick(self, values: Tensor, place: int) -> Tensor:
        """The ``values`` [B, ...] of the samples of one stream, by its place in ``active``, in their order."""
        return values if self.count == 1 else values[self.index == place]

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` [B, ...] over the samples of each stream: [A, ...]."""
        return sum_by_stream(values, self.index, self.count)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``values`` [B, ...] over the samples of each stream: [A, ...]."""
        return mean_by_stream(values, self.index, self.count)

    def all(self, values: Tensor) -> Tensor:
        """Whether ``values`` [B] holds for every sample of a stream: bool [A]."""
        return all_by_stream(values, self.index, self.count)


@dataclass(frozen=True)
class FrozenAnswer:
    """The present answer of one stream of a method, as a classifier that does not adapt.

    Its logits are ``logit_scale * cosines + logit_bias + offset``, with the cosines between the unit features of the
    image tower and ``prototypes`` [C, D]. ``norms`` gives, for each tower that adapts, the parameters that replace the
    tower's own, under their names in its ``state_dict()``. ``offset`` [C] is None where there is none. ``from_prompts``
    says whether the text tower, with its ``norms``, gives these prototypes for the prompts of the classes.

    Examples:
        >>> import lmr, torch
        >>> backbone = lmr.load("pocket")
        >>> method = lmr.create("tent", backbone.classifier(["red ring", "blue star"]))
        >>> _ = method.step(torch.randn(4, 3, 32, 32))
        >>> frozen = method.freeze()
        >>> sorted(frozen.norms[lmr.Tower.IMAGE])[:2]
        ['blocks.0.ln_1.bias', 'blocks.0.ln_1.weight']
        >>> frozen.prototypes.shape, frozen.offset, frozen.from_prompts
        (torch.Size([2, 128]), None, True)
    """

    prototypes: Tensor
    offset: Tensor | None = None
    norms: Mapping[Tower, Mapping[str, Tensor]] = field(default_factory=dict)
    from_prompts: bool = True
