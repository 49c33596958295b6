"""Orders of pictures in a stream: pure functions of the labels and a seed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
ORDERS = ("shuffle", "file", "dirichlet", "classes")


def arrange(
    kind: str, labels: Places, seed: int = 1, *, concentration: float = 0.1, block: int | None = None
) -> Places:
    """Places of the pictures with ``labels`` [N] in the order they come: a permutation of 0 … N-1."""
    if kind == "shuffle":
        return shuffle_places(len(labels), seed)
    if kind == "file":
        return np.arange(len(labels))
    if kind == "dirichlet":
        return order_by_dirichlet(labels, seed, concentration)
    if kind == "classes":
        return order_by_classes(labels, seed, block)
    raise ValueError(f"There is no order {kind!r}; choose one of: {', '.join(ORDERS)}.")


def shuffle_places(count: int, seed: int = 1) -> Places:
    """``random.seed(seed)`` and ``random.shuffle`` of a list, as the code bases do whose numbers people compare with.

    Python promises this order from version 3.2 on, and its generator is one of its own here: nobody's draws change it.
    """
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return np.array(places, np.int64)


def order_by_dirichlet(labels: Places, seed: int = 1, concentration: float = 0.1, slots: int | None = None) -> Places:
    """Label-imbalanced: time has ``slots`` parts (as many as classes), and each class spreads over them by Dirichlet.

    With a small ``concentration`` most of a class falls into few slots, with a large one every slot is balanced. The
    classes of a slot come one after the other in random order (Gong et al., "NOTE", NeurIPS 2022; Yuan et al., "RoTTA",
    CVPR 2023).
    """
    if not concentration > 0:
        raise ValueError(f"Expected a concentration above 0, got {concentration!r}.")
    generator, classes = np.random.default_rng(seed), np.unique(labels)
    slots = slots or len(classes)
    filled: list[list[NDArray[Any]]] = [[] for _ in range(slots)]
    for name in classes:
        mine = generator.permutation(np.flatnonzero(labels == name))
        shares = generator.dirichlet(np.full(slots, concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(mine)).astype(np.int64)
        for slot, part in zip(filled, np.split(mine, cuts), strict=True):
            slot.append(part)
    ordered = [slot[place] for slot in filled for place in generator.permutation(len(slot))]
    return np.concatenate(ordered).astype(np.int64) if ordered else np.empty(0, np.int64)


def order_by_classes(labels: Places, seed: int = 1, block: int | None = None) -> Places:
    """Temporally correlated: runs of ``block`` pictures of one class (a whole class if None), in random order.

    Two runs of one class may follow each other; the last run of a class may be short.
    """
    if block is not None and (not isinstance(block, int) or block < 1):
        raise ValueError(f"Expected a block of at least 1 picture, or none, got {block!r}.")
    generator = np.random.default_rng(seed)
    runs: list[NDArray[Any]] = []
    for name in np.unique(labels):
        mine = generator.permutation(np.flatnonzero(labels == name))
        size = block or len(mine)
        runs += [mine[first : first + size] for first in range(0, len(mine), size)]
    ordered = [runs[place] for place in generator.permutation(len(runs))]
    return np.concatenate(ordered).astype(np.int64) if ordered else np.empty(0, np.int64)
