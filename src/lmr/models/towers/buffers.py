"""Memory for the larger tensors of a step: one buffer for those of many images, used again at the next step.

Kept tensors that are allocated between temporary ones fragment the heap (by half of its size, as measured), and fresh
memory costs time: the system provides it in small pages and clears each of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_HELD = 2**30  # bytes kept between steps at most: what 16 images of ViT-B/16 need


class BufferPool:
    """Buffers that are not in use; a copy of the owner starts with none."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def take(self, size: int, like: Tensor) -> Tensor:
        """Return a flat tensor of at least this size, in the precision and on the device of ``like``."""
        for k, buffer in enumerate(self._buffers):
            if len(buffer) >= size and buffer.dtype == like.dtype and buffer.device == like.device:
                return self._buffers.pop(k)
        self._buffers.clear()  # all are too small: larger ones replace them
        with torch.inference_mode(False):  # so that it can be written to in any mode
            return torch.empty(size, dtype=like.dtype, device=like.device)

    def give_back(self, buffer: Tensor) -> None:
        """Keep a buffer for the next step, unless too much memory would be held."""
        if sum(held.nbytes for held in (*self._buffers, buffer)) <= _HELD:
            self._buffers.append(buffer)

    def __deepcopy__(self, memo: Any) -> BufferPool:
        return BufferPool()

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()


class Arena:
    """A buffer that tensors are cut from one after the other; what does not fit is allocated separately.

    Its buffer goes back to the pool when the arena is freed, so whoever uses a tensor of it must hold the arena.
    """

    def __init__(self, pool: BufferPool, size: int, like: Tensor) -> None:
        self._pool = pool
        self._buffer = pool.take(size, like)
        self._used = 0
        self._passing = like.new_empty(0)

    def take(self, *shape: int) -> Tensor:
        """Return a tensor of this shape, not filled."""
        size = math.prod(shape)
        if self._used + size > len(self._buffer):
            return self._buffer.new_empty(shape)
        self._used += size
        return self._buffer[self._used - size : self._used].view(shape)

    def hold(self, x: Tensor) -> Tensor:
        """Return a copy of a small tensor in the arena, as it would fragment the heap where it is."""
        return x if x.dtype != self._buffer.dtype else self.take(*x.shape).copy_(x)

    def lend(self, like: Tensor) -> Tensor:
        """Return a tensor of this shape, not filled, in the memory of the last one lent."""
        if self._passing.numel() < like.numel():
            self._passing = like.new_empty(like.numel())
        return self._passing[: like.numel()].view(like.shape)

    def restart(self) -> None:
        """Cut from the beginning again; nothing that was cut so far may be in use."""
        self._used = 0

    def close(self) -> None:
        """End lending; what was cut stays."""
        self._passing = self._passing.new_empty(0)

    def __del__(self) -> None:
        self._pool.give_back(self._buffer)
