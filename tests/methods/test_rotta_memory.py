"""RoTTA's memory: which entry a new one replaces."""

from __future__ import annotations

from lmr.methods.rotta import MemoryEntry, MemoryRules, find_timely_place

RULES = MemoryRules(size=4, classes=2, age=1.0, uncertainty=1.0)  # a quota of two per class


def test_of_equal_scores_the_last_class_and_then_the_newest_goes() -> None:
    rules = RULES._replace(age=0.0)
    held = [MemoryEntry(1, 0.5, 3), MemoryEntry(0, 0.5, 4), MemoryEntry(1, 0.5, 2), MemoryEntry(0, 0.5, 1)]
    assert find_timely_place(held, MemoryEntry(0, 0.1, 0), rules) == 3
    wide = MemoryRules(size=4, classes=1000, age=0.0, uncertainty=1.0)
    singles = [MemoryEntry(label, 0.5, label + 1) for label in (7, 9, 3, 5)]
    assert find_timely_place(singles, MemoryEntry(1, 0.1, 0), wide) == 1


def test_entry_that_is_no_better_than_the_worst_does_not_enter() -> None:
    rules = RULES._replace(age=0.0)
    held = [MemoryEntry(0, 0.5, 4), MemoryEntry(0, 0.5, 3), MemoryEntry(0, 0.5, 2), MemoryEntry(1, 0.1, 1)]
    for label in (0, 1):  # at its quota, and below it in a full memory
        assert find_timely_place(held, MemoryEntry(label, 0.5, 0), rules) is None
        assert find_timely_place(held, MemoryEntry(label, 0.499, 0), rules) == 2
