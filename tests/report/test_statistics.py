from __future__ import annotations

import math

import numpy as np
import pytest

import lmr
from lmr.report.statistics import align_by_index, bootstrap_difference


def make_answers(seed: int, size: int = 400) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    hard = random.random(size)
    return hard < 0.7, (hard < 0.6) ^ (random.random(size) < 0.05)


def test_interval_is_that_of_the_normal_approximation() -> None:
    """With 400 pictures the percentile interval is near mean +- 1.96 standard errors of the paired differences."""
    ours, other = make_answers(3)
    each = ours.astype(float) - other.astype(float)
    error = each.std(ddof=1) / math.sqrt(len(each))
    found = bootstrap_difference(ours, other, resamples=4000)
    assert found.mean == pytest.approx(each.mean())
    assert found.low == pytest.approx(each.mean() - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(each.mean() + 1.96 * error, abs=0.15 * error)
    assert bootstrap_difference(ours, other, level=0.5).low > found.low


def test_pairing_matters() -> None:
    """The same answers give no difference at all; answers to other pictures would."""
    ours, other = make_answers(4)
    same = bootstrap_difference(ours, ours.copy())
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    shuffled = np.random.default_rng(0).permutation(other)
    paired, unpaired = bootstrap_difference(ours, other), bootstrap_difference(ours, shuffled)
    assert paired.high - paired.low < 0.7 * (unpaired.high - unpaired.low)


def test_a_picture_under_many_corruptions_counts_once() -> None:
    """Fifteen copies of one stream are no more evidence than one."""
    ours, other = make_answers(5)
    one = bootstrap_difference(ours, other)
    many = bootstrap_difference(np.tile(ours, 15), np.tile(other, 15), np.tile(np.arange(len(ours)), 15))
    assert (many.mean, many.low, many.high) == pytest.approx((one.mean, one.low, one.high))
    assert many.images == one.images == 400


def test_pictures_may_have_different_numbers_of_answers() -> None:
    """Two of three answers are to one picture: the mean is over answers, the draw over pictures."""
    found = bootstrap_difference(np.array([1, 1, 0], bool), np.zeros(3, bool), np.array([7, 7, 9]))
    assert found.mean == pytest.approx(2 / 3)
    assert (found.low, found.high, found.images) == (0.0, 1.0, 2)


def test_weights_say_how_much_an_answer_counts() -> None:
    """A domain of one picture counts as much in an average of domains as one of three."""
    ours, other = np.array([1, 0, 0, 0], bool), np.zeros(4, bool)
    found = bootstrap_difference(ours, other, np.array([0, 0, 1, 2]), np.array([1, 1 / 3, 1 / 3, 1 / 3]))
    assert found.mean == pytest.approx(0.5)


def test_interval_is_the_same_every_time() -> None:
    ours, other = make_answers(6)
    assert bootstrap_difference(ours, other) == bootstrap_difference(ours, other)
    assert bootstrap_difference(ours, other) != bootstrap_difference(ours, other, seed=1)


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((0,), (0,)), ((2, 2, 2), (2, 2, 2))])
def test_answers_that_are_not_paired_get_a_sentence(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(lmr.LmrError, match="same images"):
        bootstrap_difference(np.ones(shapes[0], bool), np.ones(shapes[1], bool))


@pytest.mark.parametrize("wrong", [{"resamples": 0}, {"level": 1.0}, {"level": 0.0}])
def test_level_and_resamples_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(lmr.LmrError, match="level between 0 and 1"):
        bootstrap_difference(np.ones(3, bool), np.ones(3, bool), **wrong)  # type: ignore[arg-type]


def test_pictures_are_found_in_both_streams() -> None:
    ours, others = align_by_index(np.array([5, 2, 9]), np.array([9, 7, 5]))
    assert ours.tolist() == [0, 2]
    assert others.tolist() == [2, 0]
