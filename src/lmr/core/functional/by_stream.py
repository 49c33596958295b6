"""Reductions over the samples of each stream: pure functions.

Shapes: B samples, A streams in the batch, ``index`` [B] the stream of each sample. The result of a stream never depends
on the samples of another one, whatever they hold.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sum_by_stream(values: Tensor, index: Tensor, streams: int) -> Tensor:
    """The sum of ``values`` [B, ...] over the samples of each stream: [A, ...]."""
    if streams == 1:
        return values.sum(0, keepdim=True)
    return values.new_zeros(streams, *values.shape[1:]).index_add(0, index, values)


def mean_by_stream(values: Tensor, index: Tensor, streams: int) -> Tensor:
    """The mean of ``values`` [B, ...] over the samples of each stream: [A, ...].

    Means of counts and truths are for people to read: float64 on the CPU.
    """
    size = torch.bincount(index, minlength=streams).view(-1, *[1] * (values.ndim - 1))
    if values.is_floating_point():
        return sum_by_stream(values, index, streams) / size
    return sum_by_stream(values.long(), index, streams).cpu().double() / size.cpu()


def all_by_stream(values: Tensor, index: Tensor, streams: int) -> Tensor:
    """Whether ``values`` [B] holds for every sample of a stream: bool [A]."""
    return sum_by_stream((~values).long(), index, streams) == 0


def choose_rows(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows of ``new`` [A, ...] where ``chosen`` [A] holds, of ``old`` elsewhere."""
    return torch.where(chosen.view(-1, *[1] * (new.ndim - 1)), new, old)


def rank_by_stream(index: Tensor, streams: int) -> Tensor:
    """The place of each sample among those of its stream, in their order, from 0: int64 [B]."""
    sizes = torch.bincount(index, minlength=streams)
    order = torch.argsort(index, stable=True)
    rank = torch.empty_like(index)
    rank[order] = torch.arange(len(index), device=index.device) - (sizes.cumsum(0) - sizes)[index[order]]
    return rank
