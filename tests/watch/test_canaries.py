"""Canaries: which images are kept, when they are asked, and what they answer."""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.watch.canaries import Canaries, begin_suspicion, collect, count_room, is_due, keep_first, note_check


def logits(labels: list[int], sure: float = 20.0, classes: int = 20) -> Tensor:
    return sure * torch.nn.functional.one_hot(torch.tensor(labels), classes).float()


def test_sure_images_of_several_classes_are_kept() -> None:
    images = torch.arange(9.0).unsqueeze(1)
    kept = collect(Canaries(), images, logits([1, 1, 1, 1, 1, 2, 3, 3, 3]), 7)
    assert kept.labels == (1, 1, 1, 1, 2, 3, 3)
    assert kept.images is not None
    assert kept.images.flatten().tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert collect(kept, images, logits([5] * 9), 7) is kept
    assert collect(Canaries(), images, logits([1] * 9, sure=0.5), 7) == Canaries()


def test_images_of_another_shape_are_not_kept() -> None:
    kept = collect(Canaries(), torch.zeros(2, 3, 8, 8), logits([1, 2]), 9)
    assert collect(kept, torch.zeros(2, 3, 9, 9), logits([3, 4]), 9) is kept
    assert collect(kept, torch.zeros(2, 7), logits([3, 4]), 9) is kept
    assert collect(kept, torch.zeros(2, 3, 8, 8), logits([3, 4]), 9).labels == (1, 2, 3, 4)


def test_few_classes_have_room_for_more_of_each() -> None:
    kept = collect(Canaries(), torch.zeros(40, 1), logits([0] * 20 + [1] * 20, classes=2), 32)
    assert kept.labels == (0,) * 16 + (1,) * 16


def test_asked_every_200_steps_and_after_enough_images_for_each() -> None:
    kept = Canaries(torch.zeros(8, 1), (0,) * 8, (), 200, 160)
    assert is_due(kept, False, 1, 64, 20)
    assert not is_due(kept, False, 1, 64, 21)
    assert not is_due(Canaries(torch.zeros(8, 1), (0,) * 8, (), 199, 160), False, 1, 64, 20)
    assert not is_due(Canaries(torch.zeros(8, 1), (0,) * 8, (), 200, 159), False, 1, 64, 20)


def test_suspected_stream_is_asked_at_once_and_then_after_enough_images() -> None:
    assert is_due(Canaries(torch.zeros(8, 1), (0,) * 8), True, 1, 64, 20)
    assert is_due(Canaries(torch.zeros(8, 1), (0,) * 8, (1.0,), 1, 60), True, 4, 64, 20)
    assert not is_due(Canaries(torch.zeros(8, 1), (0,) * 8, (1.0,), 1, 60), True, 3, 64, 20)
    assert not is_due(Canaries(torch.zeros(7, 1), (0,) * 7, (), 999, 999), True, 1, 64, 20)


def test_suspicion_begins_with_no_check_and_with_the_mean_before() -> None:
    kept = Canaries(torch.zeros(8, 1), (0,) * 8, (1.0,) * 4 + (0.5,) * 6)
    suspected = begin_suspicion(kept)
    assert (suspected.history, suspected.earlier) == ((), 0.9)
    again = begin_suspicion(note_check(suspected, torch.zeros(8)))
    assert (again.history, again.earlier) == ((), 0.9)


def test_agreement_is_noted_and_old_points_are_forgotten() -> None:
    kept = Canaries(torch.zeros(8, 1), (0, 1) * 4, tuple(k / 10 for k in range(10)), 200, 900)
    new = note_check(kept, torch.tensor([0, 1, 0, 1, 0, 0, 0, 0]))
    assert new.history == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.75)
    assert (new.steps, new.passed) == (0, 0)


def test_room_is_that_of_all_streams_and_none_is_kept_that_would_never_be_asked() -> None:
    picture = 3 * 224 * 224  # 0.3 MB in half precision
    assert count_room(32, 256, 1, picture) == 32
    assert count_room(32, 256, 64, picture) == 13
    assert count_room(32, 256, 106, picture) == 8
    assert count_room(32, 256, 107, picture) == 0
    assert count_room(0, 256, 1, picture) == 0
    assert count_room(4, 256, 1, picture) == 4


def test_images_are_kept_in_half_precision_if_they_fit_in_it() -> None:
    images = torch.tensor([[1.0], [1e6], [2.0]])
    kept = collect(Canaries(), images, logits([1, 2, 3]), 9)
    assert kept.labels == (1, 3)
    assert kept.images is not None
    assert kept.images.dtype == torch.float16


def test_fewer_canaries_begin_a_new_history() -> None:
    kept = Canaries(torch.arange(9.0).unsqueeze(1), tuple(range(9)), (1.0,), 5, 6, 0.5)
    assert keep_first(kept, 9) is kept
    fewer = keep_first(kept, 2)
    assert (fewer.labels, fewer.history, fewer.earlier) == ((0, 1), (), None)
    assert keep_first(kept, 0) == Canaries()
