"""What a method is given with a batch, the streams of its images, and what it gives, the answer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmr.core.functional.by_stream import all_by_stream, mean_by_stream, sum_by_stream


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

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` [B, ...] over the samples of each stream: [A, ...]."""
        return sum_by_stream(values, self.index, self.count)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``values`` [B, ...] over the samples of each stream: [A, ...]."""
        return mean_by_stream(values, self.index, self.count)

    def all(self, values: Tensor) -> Tensor:
        """Whether ``values`` [B] holds for every sample of a stream: bool [A]."""
        return all_by_stream(values, self.index, self.count)
