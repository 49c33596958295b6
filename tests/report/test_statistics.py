from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import lmr
from lmr.report.statistics import Difference, measure_difference


def make_answers(seed: int, size: int = 400) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    hard = random.random(size)
    return hard < 0.7, (hard < 0.6) ^ (random.random(size) < 0.05)


def test_interval_over_images_is_that_of_student() -> None:
    """Against SciPy's t interval of the paired differences, and against resampling the images."""
    ours, other = make_answers(3)
    each = ours.astype(float) - other.astype(float)
    expected = stats.ttest_1samp(each, 0).confidence_interval(0.95)
    found = measure_difference(ours, other)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-6)
    assert (found.mean, found.images, found.orders) == (pytest.approx(each.mean()), 400, 1)
    assert found.by_orders is None
    drawn = stats.bootstrap((each,), np.mean, n_resamples=4000, method="percentile", random_state=1)
    assert (found.low, found.high) == pytest.approx(drawn.confidence_interval, abs=0.005)


def make_orders(seed: int, images: int, orders: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether two methods are right on each image in each order, [I, S]: ours is better in some orders."""
    random = np.random.default_rng(seed)
    hard = random.normal(size=images)[:, None]
    ours = hard + spread * random.normal(size=orders) + 0.3 * random.normal(size=(images, orders)) + 0.2 > 0
    return ours, 0.8 * hard + 0.6 * random.normal(size=(images, 1)) + np.zeros(orders) > 0


def cross(ours: np.ndarray, other: np.ndarray) -> Difference:
    index, order = (grid.ravel() for grid in np.indices(ours.shape))
    return measure_difference(ours.ravel(), other.ravel(), index, order)


def test_orders_have_their_own_quantile() -> None:
    """Both parts against SciPy's t intervals of the means over orders and over images."""
    ours, other = make_orders(1, 300, 3, 0.2)
    gain = ours.astype(float) - other
    found, parts = cross(ours, other), (found_by(gain.mean(1)), found_by(gain.mean(0)))
    assert (found.by_images, found.by_orders) == pytest.approx(parts, rel=1e-6)
    half = math.hypot(*parts)
    assert (found.low, found.high) == pytest.approx((gain.mean() - half, gain.mean() + half))
    assert (found.images, found.orders) == (300, 3)


def found_by(means: np.ndarray) -> float:
    low, high = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    return float(high - low) / 2


@pytest.mark.parametrize(("spread", "whole", "alone"), [(0.0, 98.5, 94.8), (0.1, 97.7, 89.8), (0.4, 97.3, 60.8)])
def test_interval_covers_other_images_in_other_orders(spread: float, whole: float, alone: float) -> None:
    """In % of 600 worlds of known accuracy, those of docs/report.md; ``alone`` is the interval over images alone."""
    variance = 1 + spread**2 + 0.3**2
    true = stats.norm.cdf(0.2 / math.sqrt(variance)) - 0.5
    found = [cross(*make_orders(seed, 120, 3, spread)) for seed in range(600)]
    assert 100 * np.mean([one.low <= true <= one.high for one in found]) == pytest.approx(whole, abs=0.1)
    assert 100 * np.mean([abs(one.mean - true) <= one.by_images for one in found]) == pytest.approx(alone, abs=0.1)


def test_a_picture_under_many_corruptions_counts_once() -> None:
    """Fifteen copies of one stream are no more evidence than one."""
    ours, other = make_answers(5)
    one = measure_difference(ours, other)
    many = measure_difference(np.tile(ours, 15), np.tile(other, 15), np.tile(np.arange(len(ours)), 15))
    assert (many.mean, many.low, many.high) == pytest.approx((one.mean, one.low, one.high))
    assert many.images == one.images == 400


def test_pictures_may_have_different_numbers_of_answers() -> None:
    """Two of three answers are to one picture: the mean is over answers, the draw over pictures."""
    found = measure_difference(np.array([1, 1, 0], bool), np.zeros(3, bool), np.array([7, 7, 9]))
    assert found.mean == pytest.approx(2 / 3)
    assert (found.low, found.high, found.images) == (-1, 1, 2)


def test_weights_say_how_much_an_answer_counts() -> None:
    """A domain of one picture counts as much in an average of domains as one of three."""
    ours, other = np.array([1, 0, 0, 0], bool), np.zeros(4, bool)
    found = measure_difference(ours, other, np.array([0, 0, 1, 2]), weights=np.array([1, 1 / 3, 1 / 3, 1 / 3]))
    assert found.mean == pytest.approx(0.5)


def test_answers_that_are_not_paired_are_refused() -> None:
    with pytest.raises(lmr.LmrError, match="same images"):
        measure_difference(np.ones(3, bool), np.ones(4, bool))


def test_one_image_says_nothing_about_others() -> None:
    found = measure_difference(np.ones(2, bool), np.zeros(2, bool), np.zeros(2, int))
    assert (found.low, found.high) == (0, 1)
