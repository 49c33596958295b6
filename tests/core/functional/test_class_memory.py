"""Memories with a quota per class: places, entries and draws."""

from __future__ import annotations

import torch

from lmr.core.functional.select import find_place
from lmr.methods.cliptta import draw_by_class, enter_best


def test_free_places_come_first_and_then_the_lowest_score() -> None:
    scores = torch.tensor([0.5, -1.0, -1.0])
    assert find_place(scores, 0.1) == 1
    assert find_place(torch.tensor([0.5, 0.2, 0.9]), 0.3) == 1
    assert find_place(torch.tensor([0.5, 0.2, 0.9]), 0.2) is None
    assert find_place(torch.empty(0), 0.2) is None


def test_the_best_of_each_class_stay_whatever_the_order() -> None:
    values = torch.rand(40, generator=torch.Generator().manual_seed(0)).tolist()
    labels = [k % 3 for k in range(40)]
    before = torch.full((3, 5), -1.0)
    scores, changed = enter_best(before, labels, values)
    assert (before == -1).all()
    for label in range(3):
        own = sorted((v for v, y in zip(values, labels, strict=True) if y == label), reverse=True)[:5]
        assert sorted(scores[label].tolist(), reverse=True) == torch.tensor(own).tolist()
    for (label, place), number in changed.items():
        assert labels[number] == label
        assert scores[label, place] == torch.tensor(values[number])


def test_draws_are_without_repetition_and_of_every_class() -> None:
    drawn = draw_by_class([0, 2, 7], 3, torch.Generator().manual_seed(1))
    assert drawn[:2] == [(1, 0), (1, 1)]
    assert len({place for label, place in drawn if label == 2}) == 3
    assert len(drawn) == 5
    again = draw_by_class([0, 2, 7], 3, torch.Generator().manual_seed(1))
    assert drawn == again
    others = [draw_by_class([0, 2, 7], 3, torch.Generator().manual_seed(seed)) for seed in range(8)]
    assert any(other != drawn for other in others)
