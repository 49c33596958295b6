"""Memories with a quota per class: a pure function."""

from __future__ import annotations

from torch import Tensor


def find_place(scores: Tensor, score: float) -> int | None:
    """Return the position in a class [n] that an entry takes: that of the lowest score, if the entry's is higher.

    A free place has a score below all others, so that the places of a class are filled in their order first.
    """
    lowest = int(scores.argmin()) if len(scores) else 0
    return lowest if len(scores) and score > float(scores[lowest]) else None
