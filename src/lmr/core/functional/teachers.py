"""Which images of a batch teach, where a method learns from a share of them: pure functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmr.core.functional.by_stream import rank_by_stream


def count_teachers(images: int, share: float) -> int:
    """How many of a stream's images in a batch teach: the share of them, rounded up to at least one.

    A hundred-millionth is taken off before rounding up: 0.07 of 100 is 7, although 0.07 * 100 is a little more.
    """
    return max(1, math.ceil(share * images - 1e-8))


def choose_teachers(index: Tensor, streams: int, share: float) -> Tensor:
    """The images that teach, bool [B]: of each stream's n images ceil(share n), evenly spaced in their order.

    ``index`` [B] is the stream of each image. Only the images of a stream decide which of them teach. With m of n
    teaching, the image of rank r (from 0) teaches if floor((r + 1) m / n) > floor(r m / n): the last one always does.
    """
    if share == 1:
        return torch.ones_like(index, dtype=torch.bool)  # the published method: nothing to sort in every step
    sizes, rank = torch.bincount(index, minlength=streams), rank_by_stream(index, streams)
    wanted = [count_teachers(size, share) for size in sizes.tolist()]
    many, all_ = torch.tensor(wanted, device=index.device)[index], sizes[index]
    return (rank + 1) * many // all_ > rank * many // all_
