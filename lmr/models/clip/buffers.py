"""Memory for the larger tensors of a step: one stretch for those of many images, used again at the next step.

Kept tensors that are allocated one by one, in turns with tensors that pass, leave holes in the heap (half as much again
was measured), and fresh memory costs time: the system hands it out in small pages and clears each of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_HELD = 2**30  # bytes that wait for the next step at most: what 16 images of ViT-B/16 keep


class BufferPool:
    """Stretches of memory that are not in use; a copy of its owner starts with none."""

    def __init__(self) -> None:
        self._stretches: list[Tensor] = []

    def take(self, size: int, like: Tensor) -> Tensor:
        """A flat tensor of at least this size, in the precision and on the device of ``like``."""
        for k, stretch in enumerate(self._stretches):
            if len(stretch) >= size and stretch.dtype == like.dtype and stretch.device == like.device:
                return self._stretches.pop(k)
        self._stretches.clear()  # too small, so larger ones take their place
        with torch.inference_mode(False):  # so that it can be written to in any mode
            return torch.empty(size, dtype=like.dtype, device=like.device)

    def give_back(self, stretch: Tensor) -> None:
        """Keep a stretch for the next step, unless that would hold more than somebody else may want meanwhile."""
        if sum(held.nbytes for held in (*self._stretches, stretch)) <= _HELD:
            self._stretches.append(stretch)

    def __deepcopy__(self, memo: Any) -> BufferPool:
        return BufferPool()

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()


class Arena:
    """A stretch from which tensors are cut one after the other; what does not fit is allocated by itself.

    When nobody needs the arena any more its stretch goes back to the pool: whoever uses a tensor of it holds the arena.
    """

    def __init__(self, pool: BufferPool, size: int, like: Tensor) -> None:
        self._pool = pool
        self._stretch = pool.take(size, like)
        self._used = 0
        self._passing = like.new_empty(0)

    def take(self, *shape: int) -> Tensor:
        """A tensor of this shape, not filled."""
        size = math.prod(shape)
        if self._used + size > len(self._stretch):
            return self._stretch.new_empty(shape)
        self._used += size
        return self._stretch[self._used - size : self._used].view(shape)

    def hold(self, x: Tensor) -> Tensor:
        """A copy of a small tensor, which would pin down the heap if it stayed there."""
        return x if x.dtype != self._stretch.dtype else self.take(*x.shape).copy_(x)

    def lend(self, like: Tensor) -> Tensor:
        """A tensor of this shape, not filled, in the memory of the last one lent."""
        if self._passing.numel() < like.numel():
            self._passing = like.new_empty(like.numel())
        return self._passing[: like.numel()].view(like.shape)

    def restart(self) -> None:
        """Nobody needs what was cut so far: cut from the beginning again."""
        self._used = 0

    def close(self) -> None:
        """Nothing is lent any more; what was cut stays."""
        self._passing = self._passing.new_empty(0)

    def __del__(self) -> None:
        self._pool.give_back(self._stretch)
