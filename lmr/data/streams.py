"""Streams: the pictures of a set in a fixed order, domain after domain or mixed, cut into batches.

Labels travel beside the pictures and never reach a method.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError
from lmr.data.orders import ORDERS
from lmr.data.sets.dataset import Dataset, Labels, Picture

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Pictures in the order they arrive, uint8 [H, W, 3] each; label, domain and place in the set of each: [B]."""

    pictures: list[Picture]
    labels: Labels
    domains: list[str]
    index: Places


@dataclass(frozen=True)
class Stream:
    """An order over a set. ``domain`` [N] holds places in ``domains``, ``index`` [N] places in the set.

    Batches end at ``ends``: at every ``batch_size`` pictures and, unless domains are mixed, where a domain ends, so
    that a short last batch is kept and none holds two domains.
    """

    dataset: Dataset
    domains: tuple[str, ...]
    severity: int
    kind: str
    seed: int
    batch_size: int
    domain: Places
    index: Places
    labels: Labels
    ends: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many pictures come."""
        return len(self.index)

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of the order alone.

        Streams over one domain each have the same hash if their pictures come in the same order, whatever the domain.
        """
        whole = hashlib.sha256(self.index.astype("<i8").tobytes())
        if len(self.domains) > 1:
            whole.update("\n".join(self.domains).encode() + self.domain.astype("<i8").tobytes())
        return whole.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number ``start`` on; those before it are not read."""
        if not 0 <= start <= len(self):
            raise LmrError(f"Expected a batch number from 0 to {len(self)}, got {start}.")
        for number in range(start, len(self)):
            first = self.ends[number - 1] if number else 0
            yield self._read(slice(first, self.ends[number]))

    def _read(self, part: slice) -> Batch:
        domain, index = self.domain[part], self.index[part]
        pictures: list[Picture] = [np.empty(0, np.uint8)] * len(index)
        for place in np.unique(domain):  # one call for each domain of a mixed batch
            mine = np.flatnonzero(domain == place)
            found = self.dataset.read(self.domains[place], self.severity, index[mine].tolist())
            for slot, picture in zip(mine, found, strict=True):
                pictures[slot] = picture
        return Batch(pictures, self.labels[part], [self.domains[place] for place in domain], index)


def make_stream(
    dataset: Dataset,
    domains: Sequence[str] | str | None = None,
    *,
    severity: int = 5,
    order: str = "shuffle",
    seed: int = 1,
    limit: int | None = None,
    batch_size: int = 64,
    mix: bool = False,
    concentration: float = 0.1,
    block: int | None = None,
) -> Stream:
    """A stream over ``domains`` (all of the set's if not given), one after the other, or mixed.

    ``order`` is "shuffle" (Python's own, the field's common one), "file" (as the set lists them), "dirichlet" (classes
    come and go; small ``concentration``, strong imbalance) or "classes" (runs of ``block`` pictures of one class, all
    of a class if not given). The order of every domain is the same. ``limit`` keeps the first
    so many pictures of each domain's order, and as many times the number of domains of a mixed stream.
    """
    names = dataset.domains if domains is None else (domains,) if isinstance(domains, str) else tuple(domains)
    _check(dataset, names, severity, order, limit, batch_size)
    labels = [dataset.labels(name) for name in names]
    if mix:
        groups = [np.concatenate(labels)]
        domain = np.repeat(np.arange(len(names)), [len(part) for part in labels])
        index = np.concatenate([np.arange(len(part)) for part in labels])
    else:
        groups, domain, index = labels, None, None
    domain_parts, index_parts, label_parts = [], [], []
    for place, truth in enumerate(groups):
        arranged = arrange(order, truth, seed, concentration=concentration, block=block)
        if limit is not None:
            arranged = arranged[: limit * (len(names) if mix else 1)]
        domain_parts.append(np.full(len(arranged), place) if domain is None else domain[arranged])
        index_parts.append(arranged if index is None else index[arranged])
        label_parts.append(truth[arranged])
    ends, total = [], 0
    for part in index_parts:
        ends += [total + min(end, len(part)) for end in range(batch_size, len(part) + batch_size, batch_size)]
        total += len(part)
    return Stream(
        dataset,
        names,
        severity,
        order,
        seed,
        batch_size,
        np.concatenate(domain_parts).astype(np.int64),
        np.concatenate(index_parts).astype(np.int64),
        np.concatenate(label_parts),
        tuple(ends),
    )


def _check(
    dataset: Dataset, names: Sequence[str], severity: int, order: str, limit: int | None, batch_size: int
) -> None:
    if not names or len(set(names)) < len(names):
        raise LmrError(f"Expected one or several domains, each once, got {list(names)}.")
    for name in names:
        dataset.check(name, severity)
    if order not in ORDERS:
        raise LmrError(f"There is no order {order!r}; choose one of: {', '.join(ORDERS)}.")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise LmrError(f"Expected a batch size of at least 1, got {batch_size!r}.")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise LmrError(f"Expected a limit of at least 1 picture, or none, got {limit!r}.")


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
    raise LmrError(f"There is no order {kind!r}; choose one of: {', '.join(ORDERS)}.")


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
        raise LmrError(f"Expected a concentration above 0, got {concentration!r}.")
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
        raise LmrError(f"Expected a block of at least 1 picture, or none, got {block!r}.")
    generator = np.random.default_rng(seed)
    runs: list[NDArray[Any]] = []
    for name in np.unique(labels):
        mine = generator.permutation(np.flatnonzero(labels == name))
        size = block or len(mine)
        runs += [mine[first : first + size] for first in range(0, len(mine), size)]
    ordered = [runs[place] for place in generator.permutation(len(runs))]
    return np.concatenate(ordered).astype(np.int64) if ordered else np.empty(0, np.int64)
