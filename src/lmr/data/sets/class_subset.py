"""A dataset with some of another one's classes: ``pocket-c@10`` has ten classes, ``pocket-c@10.2`` ten others.

The classes follow each other in the whole set's list, from a seeded place on, so that a smaller subset of one seed lies
within a larger one. Neighbours in a list are often alike (drawings of one shape, ImageNet's dogs), and a subset of them
is harder to tell apart than one at random: five drawings at random are no task at any corruption.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np

from lmr.core.errors import LmrError
from lmr.data.provenance import DataOrigin
from lmr.data.sets.dataset import Dataset, ImageArray, Labels, make_digest

BEFORE_COUNT = "@"  # in the name of a subset: the name of the whole set is before it, the number of classes behind


class ClassSubset(Dataset):
    """The images of ``count`` classes, in their order; image k of the whole set has the same pixels here."""

    def __init__(self, name: str, whole: Dataset, count: int, seed: int = 0) -> None:
        if not 2 <= count <= len(whole.classes):
            raise LmrError(
                f"Expected from 2 to {len(whole.classes)} classes, those of {whole.name!r}, in {name!r}, got {count}."
            )
        self.name, self.whole = name, whole
        self.domains, self.others, self.severities = whole.domains, whole.others, whole.severities
        self.chosen = choose_classes(len(whole.classes), count, seed)
        self.classes = tuple(whole.classes[place] for place in self.chosen)
        self._chosen_words = f"{count} of {len(whole.classes)}, chosen with seed {seed}"
        self.protocol = self._describe(whole.protocol)

    @property
    def digest(self) -> str:
        """Of the whole set and the chosen classes."""
        return self._digest(self.whole.digest)

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Of that part of the whole set and the chosen classes."""
        return self._digest(self.whole.digest_part(domains, severity))

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """The protocol of that part of the whole set, and the choice."""
        return self._describe(self.whole.describe_part(domains))

    def find_origin(self, domains: Sequence[str]) -> DataOrigin:
        """The origin of the whole set."""
        return self.whole.find_origin(domains)

    def labels(self, domain: str) -> Labels:
        """Labels count the chosen classes from 0."""
        labels = self.whole.labels(domain)
        return np.searchsorted(self.chosen, labels[self._find_places(domain)]).astype(np.int64)

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Read the images from the whole set."""
        indices = [int(index) for index in indices]
        self.check(domain, severity, indices)
        places = self._find_places(domain)
        return self.whole.read(domain, severity, places[indices].tolist())

    def _find_places(self, domain: str) -> Labels:
        """The index in the whole set of every image: int64 [N]."""
        return np.flatnonzero(np.isin(self.whole.labels(domain), self.chosen))

    def _digest(self, whole: str) -> str:
        return make_digest(whole, "classes", *map(str, self.chosen))

    def _describe(self, protocol: dict[str, str]) -> dict[str, str]:
        return {**protocol, "subset": self._chosen_words}


def choose_classes(total: int, count: int, seed: int = 0) -> list[int]:
    """``count`` of ``total`` classes from a random place on, as if the last were followed by the first; sorted."""
    first = random.Random(seed).randrange(total)
    return sorted((first + place) % total for place in range(count))


def split_subset(name: str) -> tuple[str, int, int] | None:
    """``NAME@COUNT`` or ``NAME@COUNT.SEED`` as name, count and seed; None for the name of a whole set."""
    whole, at, numbers = name.rpartition(BEFORE_COUNT)
    if not at:
        return None
    count, dot, seed = numbers.partition(".")
    if not count.isdecimal() or (dot and not seed.isdecimal()):
        raise LmrError(
            f"Cannot read the dataset {name!r}; ten classes of it are {whole}@10, another ten {whole}@10.2, where 2 is "
            "a seed."
        )
    return whole, int(count), int(seed or 0)
