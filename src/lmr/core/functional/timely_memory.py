"""RoTTA's memory of images, balanced over classes, recent and certain: pure functions of its entries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class MemoryEntry(NamedTuple):
    """What the memory knows of an image."""

    label: int
    uncertainty: float
    age: int


class MemoryRules(NamedTuple):
    """The size of the memory, the number of classes, and the weights of age and uncertainty in a score."""

    size: int
    classes: int
    age: float
    uncertainty: float

    def score(self, entry: MemoryEntry) -> float:
        """How little worth keeping an entry is: high if it is old or uncertain."""
        timely = self.age / (1 + math.exp(-entry.age / self.size))
        return timely + self.uncertainty * entry.uncertainty / math.log(self.classes)


def find_timely_place(held: Sequence[MemoryEntry], new: MemoryEntry, rules: MemoryRules) -> int | None:
    """The place that a new entry takes: a free one after those ``held``, that of an entry it replaces, or None.

    A class has a quota of size / classes. Below it the memory may grow; a full one gives up the entry of the highest
    score among the classes that hold most. At its quota a class gives up one of its own. Either goes only if its score
    is above that of the new entry. Of equal scores the last counts, in the order of classes and then of arrival.
    """
    counts = Counter(entry.label for entry in held)
    if counts[new.label] < rules.size / rules.classes:
        if len(held) < rules.size:
            return len(held)
        most = max(counts.values())
        labels = {label for label, count in counts.items() if count == most}
    else:
        labels = {new.label}
    worst = max(
        (place for place, entry in enumerate(held) if entry.label in labels),
        key=lambda place: (rules.score(held[place]), held[place].label, -held[place].age),
    )
    return worst if rules.score(held[worst]) > rules.score(new) else None


def weigh_age(age: int, size: int) -> float:
    """The weight of an entry in the loss: a half for a new one, falling with its age."""
    return 1 / (1 + math.exp(age / size))
