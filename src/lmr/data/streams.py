"""Streams: the images of a set in a fixed order, domain after domain or mixed, cut into batches.

Labels are kept apart from the images and never reach a method.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError
from lmr.data.dataset import CLEAN, Dataset, ImageArray, Labels
from lmr.data.frames import Haul, Jitter
from lmr.data.names import ORDERS

Places = NDArray[np.int64]
LONGEST_BURST = 50  # frames
Dominant = tuple[tuple[int, ...], ...]  # classes that dominate first, and those that do after a change


@dataclass(frozen=True)
class Batch:
    """Images in the order of the stream, uint8 [H, W, 3]; the label, domain and index in the set of each: [B]."""

    images: list[ImageArray]
    labels: Labels
    domains: list[str]
    index: Places


@dataclass(frozen=True)
class Stream:
    """An order over a set. ``domain`` [N] holds indices into ``domains``, ``index`` [N] indices into the set.

    ``frames`` changes images by their positions in the stream, if the order does that. Batches end at ``ends``: after
    every batch of full size and, unless domains are mixed, at the end of a domain. So a short last batch is kept,
    and no batch contains two domains. Only the weather of an onset changes within a batch.
    """

    dataset: Dataset
    domains: tuple[str, ...]
    severity: int
    domain: Places
    index: Places
    labels: Labels
    ends: tuple[int, ...]
    frames: Jitter | Haul | None = None

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self.index)

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that depend on the order and on its changes of images alone.

        Streams over one domain have the same hash if their images come in the same order, whatever the domain.
        """
        whole = hashlib.sha256(self.index.astype("<i8").tobytes())
        if len(self.domains) > 1:
            whole.update("\n".join(self.domains).encode() + self.domain.astype("<i8").tobytes())
        if self.frames is not None:
            whole.update(self.frames.identity.encode())
        return whole.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches from number ``start`` on; earlier ones are not read."""
        if not 0 <= start <= len(self):
            raise LmrError(f"Expected a batch number from 0 to {len(self)}, got {start}.")
        return map(self.batch, range(start, len(self)))

    def batch(self, number: int) -> Batch:
        """Return one batch by its number; threads may read several at once."""
        first = self.ends[number - 1] if number else 0
        return self.read(np.arange(first, self.ends[number]))

    def read(self, places: Places) -> Batch:
        """Return the images at some places of the stream."""
        domain, index = self.domain[places], self.index[places]
        images: list[ImageArray] = [np.empty(0, np.uint8)] * len(index)
        for place in np.unique(domain):  # one call for each domain of a mixed batch
            mine = np.flatnonzero(domain == place)
            found = self.dataset.read(self.domains[place], self.severity, index[mine].tolist())
            for slot, image in zip(mine, found, strict=True):
                images[slot] = image
        if self.frames is not None:
            images = self.frames.change(images, places.tolist())
        return Batch(images, self.labels[places], [self.domains[place] for place in domain], index)


@dataclass(frozen=True)
class Order:
    """The order of the images in a stream, and what it depends on.

    ``kind`` is "shuffle" (Python's shuffle, the usual one), "file" (as the set lists them), "dirichlet" (classes come
    and go), "classes" (one class after the other), "bursts" (runs of frames of one image, each changed by
    ``Jitter``), "shift" (one class is half of the stream), "skew" (some classes dominate, see ``order_by_skew``) or
    "haul" (shuffled clean images, changed by ``Haul``). In the last four images repeat.
    """

    kind: str = "shuffle"
    seed: int = 1
    concentration: float = 0.1  # of "dirichlet": small is strongly imbalanced
    majority: float = 0.8  # of "skew": the share of the dominant classes
    tail: float | None = None  # of "skew", in place of a majority: class k has a share as tail^k
    dominant: str = ""  # of "skew": classes as ``read_dominant`` reads them; "": the seed draws one
    onset: int = 0  # clean images at the beginning of a stream over one domain, before the corruption
    rounds: int = 1  # through all domains, with the same images
    mix: bool = False  # all domains shuffled into one

    @property
    def settings(self) -> dict[str, float | int | str]:
        """What the order depends on besides the seed and the domains, by the keys of plans."""
        shares = "majority" if self.tail is None else "tail"
        own = {"dirichlet": ("concentration",), "skew": (shares, "dominant")}
        keys = (*own.get(self.kind, ()), "onset")
        return {key: value for key in keys if (value := getattr(self, key))}

    def arrange(self, labels: Places, count: int | None = None) -> Places:
        """Return ``count`` (default: N) indices of images with ``labels`` [N] in this order.

        That is a permutation of 0 … N-1, or of ``count`` images, which are the same for every seed: the first ones of
        "file", else those that are first in the "shuffle" of seed 1. In "bursts", "shift", "skew" and "haul" images
        repeat, and the seed also draws them.
        """
        seed, total = self.seed, len(labels)
        if self.kind == "skew":
            return order_by_skew(
                labels, seed, count, majority=self.majority, tail=self.tail, dominant=read_dominant(self.dominant),
                switch=self.onset,
            )  # fmt: skip
        if self.kind == "bursts":
            return order_by_bursts(labels, seed, count)
        if self.kind == "shift":
            return order_by_shift(labels, seed, count)
        if self.kind == "haul":
            return _deal(np.arange(total), total if count is None else count, np.random.default_rng(seed))
        if self.kind == "file":
            return np.arange(total)[:count]
        chosen = np.sort(shuffle_places(total)[:count])
        if self.kind == "shuffle":
            places = shuffle_places(total, seed)
            return places[np.isin(places, chosen)]
        if self.kind == "dirichlet":
            return chosen[order_by_dirichlet(labels[chosen], seed, self.concentration)]
        if self.kind == "classes":
            return chosen[order_by_classes(labels[chosen], seed)]
        raise LmrError(f"There is no order {self.kind!r}; choose one of: {', '.join(ORDERS)}.")


def make_stream(
    dataset: Dataset,
    domains: Sequence[str] | str | None = None,
    *,
    order: Order | str = "shuffle",
    severity: int = 5,
    limit: int | None = None,
    batch_size: int = 64,
    **settings: Any,
) -> Stream:
    """Return a stream over ``domains`` (default: all domains of the set), one after the other, or mixed.

    ``order`` is an ``Order``, or the kind of one, with its other fields as ``settings``. The order is the same in every
    domain. ``limit`` keeps so many images of each domain, as ``Order.arrange`` says, and of a mixed stream ``limit``
    times the number of domains. It may exceed the size of the set if the order repeats images.
    """
    order = replace(order, **settings) if isinstance(order, Order) else Order(order, **settings)
    names = dataset.domains if domains is None else (domains,) if isinstance(domains, str) else tuple(domains)
    _check(dataset, names, severity, order)
    # The domain, the index and the label of every image, for each domain or for all of them together.
    groups = [
        (np.full(len(truth), place), np.arange(len(truth)), truth)
        for place, truth in enumerate(map(dataset.labels, names))
    ]
    if order.mix:
        groups = [_join(groups)]
    count = None if limit is None else limit * (len(names) if order.mix else 1)
    parts, ends, total = [], [], 0
    for domain, index, truth in groups:
        arranged = order.arrange(truth, count)
        parts.append((domain[arranged], index[arranged], truth[arranged]))
    parts *= order.rounds
    for _, index, _ in parts:
        ends += [total + min(end, len(index)) for end in range(batch_size, len(index) + batch_size, batch_size)]
        total += len(index)
    domain, index, truth = _join(parts)
    if order.onset:
        if order.onset >= total:
            raise LmrError(f"The onset after {order.onset} images leaves none of the {total} images of the stream.")
        domain[: order.onset] = len(names)
        names = (*names, CLEAN)
    frames: Jitter | Haul | None = None
    if order.kind in ("bursts", "haul"):
        frames = Jitter(order.seed) if order.kind == "bursts" else Haul(order.seed, severity)
    places = domain.astype(np.int64), index.astype(np.int64)
    return Stream(dataset, names, severity, *places, truth, tuple(ends), frames)


def _join(groups: Sequence[tuple[Places, Places, Labels]]) -> tuple[Places, Places, Labels]:
    domain, index, truth = (np.concatenate(arrays) for arrays in zip(*groups, strict=True))
    return domain, index, truth


def _check(dataset: Dataset, names: Sequence[str], severity: int, order: Order) -> None:
    if not names or len(set(names)) < len(names):
        raise LmrError(f"Expected one or several domains, each once, got {list(names)}.")
    for name in names:
        dataset.check(name, severity)
    if order.kind == "haul" and tuple(names) != (CLEAN,):
        raise LmrError(f"The order 'haul' corrupts clean images itself; give the domain {CLEAN!r}, not {list(names)}.")
    if order.onset:
        if len(names) > 1 or CLEAN in names:
            raise LmrError(f"An onset is the change from clean images to one corruption; give one, not {list(names)}.")
        dataset.check(CLEAN)


def shuffle_places(count: int, seed: int = 1) -> Places:
    """Shuffle like ``random.seed(seed)`` and ``random.shuffle``, as in the code behind the published results.

    Python guarantees this order since version 3.2. The generator is separate, so that no other draws change it.
    """
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return np.array(places, np.int64)


def order_by_dirichlet(labels: Places, seed: int = 1, concentration: float = 0.1) -> Places:
    """Order with label imbalance: a Dirichlet distribution spreads each class over the slots of the stream.

    There are as many slots as classes. With a small ``concentration`` most of a class falls into few slots, with a
    large one every slot is balanced. The classes of a slot follow each other in random order (Gong et al., "NOTE",
    NeurIPS 2022; Yuan et al., "RoTTA", CVPR 2023).
    """
    generator, classes = np.random.default_rng(seed), np.unique(labels)
    filled: list[list[NDArray[Any]]] = [[] for _ in classes]
    for name in classes:
        mine = generator.permutation(np.flatnonzero(labels == name))
        shares = generator.dirichlet(np.full(len(classes), concentration))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(mine)).astype(np.int64)
        for slot, part in zip(filled, np.split(mine, cuts), strict=True):
            slot.append(part)
    ordered = [slot[place] for slot in filled for place in generator.permutation(len(slot))]
    return np.concatenate(ordered).astype(np.int64) if ordered else np.empty(0, np.int64)


def order_by_classes(labels: Places, seed: int = 1) -> Places:
    """Order with temporal correlation: all images of one class, then those of another, classes in random order."""
    generator = np.random.default_rng(seed)
    runs = [generator.permutation(np.flatnonzero(labels == name)) for name in np.unique(labels)]
    ordered = [runs[place] for place in generator.permutation(len(runs))]
    return np.concatenate(ordered).astype(np.int64) if ordered else np.empty(0, np.int64)


def order_by_bursts(labels: Places, seed: int = 1, count: int | None = None) -> Places:
    """Order like a camera: images in random order, each for 1 to 50 frames in a row.

    The stream ends after ``count`` frames (default: the number of images), and so does the last run. Every image is
    shown before one repeats.
    """
    count = len(labels) if count is None else count
    scenes = _deal(np.arange(len(labels)), count, np.random.default_rng([seed, 0]))  # a frame each would be enough
    lengths = np.random.default_rng([seed, 1]).integers(1, LONGEST_BURST + 1, len(scenes))
    return np.repeat(scenes, lengths)[:count]


def order_by_shift(labels: Places, seed: int = 1, count: int | None = None) -> Places:
    """Order with label shift: an image is of one class, drawn by the seed, with probability 1/2, else of the others.

    Returns ``count`` images (default: all). All images of either side are shown before one of them repeats.
    """
    count, classes = len(labels) if count is None else count, np.unique(labels)
    if len(classes) < 2:
        raise LmrError("The order 'shift' needs images of at least two classes.")
    generators = [np.random.default_rng([seed, k]) for k in range(4)]  # one for each use: a longer stream begins alike
    frequent = labels == generators[0].choice(classes)
    chosen = generators[1].random(count) < 0.5
    ordered = np.empty(count, np.int64)
    for side, generator in ((True, generators[2]), (False, generators[3])):
        ordered[chosen == side] = _deal(np.flatnonzero(frequent == side), int((chosen == side).sum()), generator)
    return ordered


def order_by_skew(
    labels: Places,
    seed: int = 1,
    count: int | None = None,
    *,
    majority: float = 0.8,
    tail: float | None = None,
    dominant: Dominant = ((),),
    switch: int = 0,
) -> Places:
    """Order with skewed classes: the class of every image is drawn anew, with these shares.

    The ``dominant`` classes have the share ``majority`` together, each the same, and the others have the rest, each
    the same. With ``tail`` the k-th class of a list has a share in proportion to tail^k instead: the seed draws the
    list, and the dominant classes are put at its head. Without dominant classes the first of the list dominates.
    If two tuples of classes are given, the second takes over after ``switch`` images (0: half-way).

    Returns ``count`` images (default: all). All images of a class are shown before one of them repeats. Unless the
    classes change half-way, a shorter stream is the beginning of a longer one.
    """
    count, classes = len(labels) if count is None else count, np.unique(labels)
    _check_skew(classes, dominant)
    drawn = np.random.default_rng([seed, 0]).permutation(classes)
    chances = np.random.default_rng([seed, 1]).random(count)
    wanted = np.empty(count, np.int64)
    starts = (0, switch or count // 2)[: len(dominant)]
    for start, stop, frequent in zip(starts, (*starts[1:], count), dominant, strict=True):
        listed = np.array([*frequent, *(name for name in drawn if name not in frequent)], np.int64)
        shares = share_classes(len(listed), len(frequent) or 1, majority, tail)
        places = np.searchsorted(np.cumsum(shares)[:-1], chances[start:stop], side="right")
        wanted[start:stop] = listed[places]
    ordered = np.empty(count, np.int64)
    for name in classes:
        mine = wanted == name
        generator = np.random.default_rng([seed, 2, name])
        ordered[mine] = _deal(np.flatnonzero(labels == name), int(mine.sum()), generator)
    return ordered


def share_classes(classes: int, frequent: int, majority: float, tail: float | None) -> NDArray[np.float64]:
    """Return the shares of a list of classes, [C]: the first ``frequent`` dominate, or they fall as tail^k."""
    places = np.arange(classes)
    if tail is not None:
        weights = np.float64(tail) ** places
        return np.asarray(weights / weights.sum())
    return np.where(places < frequent, majority / frequent, (1 - majority) / (classes - frequent))


def _check_skew(classes: Places, dominant: Dominant) -> None:
    for frequent in dominant:
        if missing := sorted(set(frequent) - set(classes.tolist())):
            known = f"{classes.min()} to {classes.max()}" if len(classes) else "none"
            raise LmrError(f"There are no images of the dominant class {missing[0]}; the classes with images: {known}.")
        if len(classes) <= max(1, len(frequent)):
            raise LmrError("The order 'skew' needs images of at least one class that does not dominate.")


def read_dominant(text: str) -> Dominant:
    """Read dominant classes: "1", "1+3" (both), "1>3" (the second after the change), "" (the seed draws one).

    The numbers are places in the list of classes.
    """
    if text and not re.fullmatch(r"\d+(\+\d+)*(>\d+(\+\d+)*)?", text):
        raise LmrError(
            f"Cannot read the dominant classes {text!r}; write the number of a class as in '1', of two as in '1+3', "
            "and '1>3' if class 3 takes over."
        )
    found = tuple(tuple(int(number) for number in part.split("+") if number) for part in text.split(">"))
    if any(len(set(part)) < len(part) for part in found):
        raise LmrError(f"Expected each dominant class once, got {text!r}.")
    return found


def _deal(places: Places, count: int, generator: np.random.Generator) -> Places:
    """Return ``count`` of the places in random order; when all have been dealt they are shuffled again."""
    rounds = -(-count // len(places)) if len(places) else 0
    return np.concatenate([generator.permutation(places) for _ in range(rounds)] or [places])[:count]
