"""Streams: which stream each sample of a batch belongs to, and reductions over the samples of each stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

StreamIds = Sequence[int] | Tensor | int | None  # as users name streams; None: all of them


@dataclass(frozen=True)
class Streams:
    """The streams of a batch: ``active`` [A] sorted stream ids, ``index`` [B] each sample's position in ``active``.

    A result for one stream never depends on the samples of another, whatever values they hold.

    Examples:
        >>> import lmr, torch
        >>> streams = lmr.Streams(active=torch.tensor([2, 7]), index=torch.tensor([0, 1, 1]))  # streams 2, 7 and 7
        >>> streams.sizes
        tensor([1, 2])
        >>> streams.mean(torch.tensor([1.0, 3.0, 5.0]))
        tensor([1., 4.])
        >>> streams.repeat(torch.tensor([10, 20]))
        tensor([10, 20, 20])
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
        if self.count == 1:
            return torch.full_like(self.active, len(self.index))
        return torch.zeros_like(self.active).index_add(0, self.index, torch.ones_like(self.index))

    def repeat(self, values: Tensor) -> Tensor:
        """Return for each sample the value of its stream: [A, ...] to [B, ...]."""
        return values[self.index]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` [B, ...] over the samples of each stream: [A, ...]."""
        if self.count == 1:
            return values.sum(0, keepdim=True)
        return values.new_zeros(self.count, *values.shape[1:]).index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` [B, ...] over the samples of each stream: [A, ...].

        Means of integers and booleans are float64.
        """
        size = self.sizes.view(-1, *[1] * (values.ndim - 1))
        return self.sum(values if values.is_floating_point() else values.double()) / size

    def all(self, values: Tensor) -> Tensor:
        """Check for each stream that ``values`` [B] is true for all its samples: bool [A]."""
        return self.sum((~values).long()) == 0

    def rank(self) -> Tensor:
        """Return the position of each sample among those of its stream, from 0: int64 [B]."""
        order = torch.argsort(self.index, stable=True)
        rank = torch.empty_like(self.index)
        first = self.sizes.cumsum(0) - self.sizes
        rank[order] = torch.arange(len(self.index), device=self.index.device) - first[self.index[order]]
        return rank

    def places(self) -> list[int]:
        """Return the position of each sample's stream as plain numbers, from 0."""
        return [0] * len(self.index) if self.count == 1 else self.index.tolist()

    def pick(self, values: Tensor, position: int) -> Tensor:
        """Return the ``values`` [B, ...] of one stream's samples, by its position in ``active``."""
        return values if self.count == 1 else values[self.index == position]

    def take(self, samples: Tensor | slice) -> Streams:
        """Return the streams of some samples, given as bool [B], numbers [n] or a slice; ``active`` stays the same."""
        return Streams(self.active, self.index[samples])


def choose_rows(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return rows of ``new`` [A, ...] where ``chosen`` [A] is true, and of ``old`` elsewhere."""
    return torch.where(chosen.view(-1, *[1] * (new.ndim - 1)), new, old)
