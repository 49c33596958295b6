"""Which images of a batch teach, where a method learns from a share of them: a pure function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmr.core.functional.by_stream import rank_by_stream


def choose_teachers(index: Tensor, streams: int, share: float) -> Tensor:
    """The images that teach, bool [B]: of each stream's n images ceil(share n), evenly spaced in their order.

    ``index`` [B] is the stream of each image. Only the images of a stream decide which of them teach. With m of n
    teaching, the image of rank r (from 0) teaches if floor((r + 1) m / n) > floor(r m / n): the last one always does.
    A hundred-millionth is taken off before rounding up: 0.07 of 100 is 7, although 0.07 * 100 is a little more.
    """
    if share == 1:
        return torch.ones_like(index, dtype=torch.bool)  # the published method: nothing to sort in every step
    sizes, rank = torch.bincount(index, minlength=streams), rank_by_stream(index, streams)
    wanted = [max(1, math.ceil(share * size - 1e-8)) for size in sizes.tolist()]
    many, all_ = torch.tensor(wanted, device=index.device)[index], sizes[index]
    return (rank + 1) * many // all_ > rank * many // all_
