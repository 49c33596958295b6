"""Snapshots of a stream's state, bounded in number and in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Snapshot:
    """The state of one stream, tensors [1, ...], after some step."""

    step: int
    tensors: dict[str, Tensor]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def add_snapshot(kept: Sequence[Snapshot], new: Snapshot, most: int, most_bytes: float) -> tuple[Snapshot, ...]:
    """The snapshots, oldest first, with a new one; the oldest go until at most ``most`` of ``most_bytes`` are left."""
    left = [*kept, new]
    while left and (len(left) > most or sum(one.size for one in left) > most_bytes):
        del left[0]
    return tuple(left)


def find_snapshot(kept: Sequence[Snapshot], last: int) -> Snapshot | None:
    """The newest snapshot that was taken at step ``last`` or before."""
    return next((one for one in reversed(kept) if one.step <= last), None)


def is_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two states of a stream, of the same method, are equal."""
    return all(torch.equal(value, other[key]) for key, value in one.items())
