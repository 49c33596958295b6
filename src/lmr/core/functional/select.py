"""Choices among views, images and entries of a memory: pure functions that two or more methods need."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lmr.core.functional.losses import entropy
from lmr.core.state import move_together
from lmr.core.streams import Streams


def rank_confident(logits: Tensor) -> Tensor:
    """Return the views [..., V] of logits [..., V, C] in the order of rising entropy; equal ones keep their order."""
    return entropy(logits).sort(dim=-1, stable=True).indices


def count_kept(views: int, share: float) -> int:
    """Return the number of views in a share of them: rounded down, at least one."""
    return max(1, int(views * share))


def link_nearest(likeness: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Return directed links [N, N] of every image to its ``count`` likeliest others, or to all where there are fewer.

    The weight of a link is that in ``weights`` [N, N], or 1. No image is linked to itself.
    """
    others = likeness.clone().fill_diagonal_(-torch.inf)
    near = others.topk(min(count, len(likeness) - 1), 1).indices
    links = torch.zeros_like(likeness)
    return links.scatter(1, near, 1.0 if weights is None else weights.gather(1, near))


def find_place(scores: Tensor, score: Tensor) -> Tensor:
    """Return the place that an entry takes in a class, bool [n]: that of the lowest score, if the entry's is higher.

    A free place has a score below all others, so that the places of a class are filled in their order first.
    """
    if not len(scores):
        return torch.zeros_like(scores, dtype=torch.bool)
    places = torch.arange(len(scores), device=scores.device)
    return (places == scores.argmin()) & (score > scores.amin())


class Entered(NamedTuple):
    """What entering samples [B] into memories [A, C, n] has changed."""

    scores: Tensor  # [A, C, n] afterwards
    places: Tensor  # [m, 3] that hold others now
    samples: Tensor  # [m], those that are there
    entered: Tensor  # bool [B], those that were there at a time


def enter_best(scores: Tensor, labels: Tensor, fresh: Tensor, streams: Streams) -> Entered:
    """Enter samples [B] in their order into memories that keep the highest scores [A, C, n] of every class.

    ``labels`` and ``fresh`` [B] are their classes and scores. As each entry depends on those before it, they are
    entered on the CPU, with one transfer in each direction.
    """
    given = {"scores": scores, "labels": labels, "fresh": fresh, "index": streams.index}
    lists = {key: value.tolist() for key, value in move_together(given, torch.device("cpu")).items()}
    table, changed, entered = lists["scores"], dict[tuple[int, int, int], int](), [False] * len(labels)
    for number, (k, label, score) in enumerate(zip(*(lists[key] for key in ("index", "labels", "fresh")), strict=True)):
        held = table[k][label]
        place = min(range(len(held)), key=held.__getitem__, default=0)
        if held and score > held[place]:
            held[place] = score
            changed[k, label, place], entered[number] = number, True
    new = {
        "scores": torch.tensor(table, dtype=scores.dtype).view(scores.shape),
        "places": torch.tensor(list(changed), dtype=torch.int64).view(-1, 3),
        "samples": torch.tensor(list(changed.values()), dtype=torch.int64),
        "entered": torch.tensor(entered),
    }
    return Entered(**move_together(new, scores.device))
