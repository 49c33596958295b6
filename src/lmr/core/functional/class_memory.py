"""Memories with a quota per class: which place a new entry takes, and which entries are drawn. Pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def find_place(scores: Tensor, score: float) -> int | None:
    """The place of a class [n] that an entry takes: that of the lowest score, if the entry's is higher.

    A free place has a score below all others, so that the places of a class are filled in their order first.
    """
    lowest = int(scores.argmin()) if len(scores) else 0
    return lowest if len(scores) and score > float(scores[lowest]) else None


def enter_best(scores: Tensor, labels: list[int], fresh: list[float]) -> tuple[Tensor, dict[tuple[int, int], int]]:
    """Enter samples in their order into a memory that keeps the highest scores [C, n] of every class.

    Gives the scores afterwards, and which sample is now in which place (class, place) that was changed.
    """
    scores, changed = scores.clone(), {}
    for number, (label, score) in enumerate(zip(labels, fresh, strict=True)):
        place = find_place(scores[label], score)
        if place is not None:
            scores[label, place] = score
            changed[label, place] = number
    return scores, changed


def draw_by_class(held: list[int], most: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """At most so many entries of each class, of which there are ``held``: (class, place), without repetition."""
    drawn = []
    for label, count in enumerate(held):
        places = range(count) if count <= most else torch.randperm(count, generator=generator)[:most].tolist()
        drawn += [(label, place) for place in places]
    return drawn
