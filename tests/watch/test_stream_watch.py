"""The shelf of snapshots is bounded, and the right one is found."""

from __future__ import annotations

import torch

from lmr.watch.stream_watch import Snapshot, add_snapshot, find_snapshot


def make(step: int, size: int = 10) -> Snapshot:
    return Snapshot(step, {"norms": torch.zeros(1, size)})


def test_oldest_goes_first() -> None:
    kept: tuple[Snapshot, ...] = ()
    for step in (1, 2, 3, 4):
        kept = add_snapshot(kept, make(step), 3, 1e6)
    assert [one.step for one in kept] == [2, 3, 4]


def test_memory_is_bounded_also_for_states_that_grow() -> None:
    kept: tuple[Snapshot, ...] = ()
    for step in range(1, 8):
        kept = add_snapshot(kept, make(step, 10 * step), 4, 400)
        assert sum(one.size for one in kept) <= 400
    assert [one.step for one in kept] == [7]
    assert add_snapshot(kept, make(8, 1000), 4, 400) == ()


def test_newest_that_is_old_enough_is_found() -> None:
    kept = (make(64), make(128), make(192))
    assert find_snapshot(kept, 130) is kept[1]
    assert find_snapshot(kept, 192) is kept[2]
    assert find_snapshot(kept, 63) is None
