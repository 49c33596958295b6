from __future__ import annotations

import math

import numpy as np
import pytest

from lmr.bench.running.metrics import (
    accuracy,
    calibration_error,
    effective_classes,
    judge_classes,
    macro_recall,
    running_accuracy,
    running_top_share,
    share_below,
    share_of_classes,
    thin_curve,
    top_share,
    window_gains,
    worst_drop,
)


@pytest.mark.parametrize("seed", range(5))
def test_running_measures_equal_counting_from_the_start(seed: int) -> None:
    random = np.random.default_rng(seed)
    predicted, true = random.integers(0, 4, 60), random.integers(0, 4, 60)
    right, share = running_accuracy(predicted, true), running_top_share(predicted, 4)
    for n in range(1, 61):
        correct = sum(int(p == t) for p, t in zip(predicted[:n], true[:n], strict=True))
        most = max(list(predicted[:n]).count(label) for label in range(4))
        assert right[n - 1] == pytest.approx(correct / n)
        assert share[n - 1] == pytest.approx(most / n)
    assert accuracy(predicted, true) == pytest.approx(right[-1])
    assert top_share(predicted) == pytest.approx(share[-1])


def reference_error(confidence: np.ndarray, right: np.ndarray, bins: int) -> float:
    """The calibration error from its definition: a sum over bins (k/bins, (k+1)/bins]."""
    error = 0.0
    for k in range(bins):
        inside = [i for i, c in enumerate(confidence) if k / bins < c <= (k + 1) / bins or (k == 0 and c == 0)]
        if inside:
            sure = sum(float(confidence[i]) for i in inside) / len(inside)
            hit = sum(bool(right[i]) for i in inside) / len(inside)
            error += len(inside) / len(confidence) * abs(sure - hit)
    return error


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("seed", range(4))
def test_calibration_error_equals_its_definition(seed: int, bins: int) -> None:
    random = np.random.default_rng(seed)
    confidence = random.beta(4, 1.5, 300)
    right = random.random(300) < confidence**2
    assert calibration_error(confidence, right, bins) == pytest.approx(reference_error(confidence, right, bins))
    assert math.isnan(calibration_error(np.array([0.5, np.nan]), np.array([True, False])))


def recall_plainly(predicted: list[int], true: list[int]) -> float:
    recalls = []
    for name in set(true):
        mine = [guess == name for guess, label in zip(predicted, true, strict=True) if label == name]
        recalls.append(sum(mine) / len(mine))
    return sum(recalls) / len(recalls)


def test_macro_recall_against_plain_python() -> None:
    """Classes that occur in the answers alone do not count, and a rare class counts as much as a frequent one."""
    assert macro_recall(np.array([0, 0, 0, 5, 2]), np.array([0, 0, 0, 0, 2])) == pytest.approx(0.875)
    generator = np.random.default_rng(1)
    true = generator.choice(7, 301, p=[0.8, 0.1, 0.05, 0.03, 0.01, 0.01, 0.0])
    predicted = np.where(generator.random(301) < 0.5, true, generator.integers(0, 7, 301))
    found = judge_classes(predicted, true)
    late = predicted[150:].tolist(), true[150:].tolist()
    assert found == {
        "accuracy": pytest.approx((predicted == true).mean()),
        "macro_recall": pytest.approx(recall_plainly(predicted.tolist(), true.tolist())),
        "accuracy_second_half": pytest.approx((predicted == true)[150:].mean()),
        "macro_recall_second_half": pytest.approx(recall_plainly(*late)),
    }


def test_concentration_of_known_answers() -> None:
    even = np.arange(20) % 5
    assert effective_classes(even) == pytest.approx(5)
    assert share_of_classes(even, 10) == 0.5
    one = np.zeros(7, np.int64)
    assert effective_classes(one) == pytest.approx(1)
    assert top_share(one) == 1
    uneven = np.array([0, 0, 0, 1])
    assert effective_classes(uneven) == pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))


@pytest.mark.parametrize("count", [1, 3, 200, 201, 1000, 12345])
def test_curve_has_few_places_and_the_last(count: int) -> None:
    values = np.linspace(0, 1, count)
    curve = thin_curve(values)
    assert len(curve["images"]) == len(curve["accuracy"]) == min(count, 200)
    assert curve["images"][0] == 1
    assert curve["images"][-1] == count
    assert curve["images"] == sorted(set(curve["images"]))
    assert curve["accuracy"] == [values[int(n) - 1] for n in curve["images"]]


def test_windows_are_compared_one_by_one() -> None:
    right, reference = np.array([1, 1, 0, 0, 1, 1, 0], bool), np.array([1, 0, 0, 1, 1, 1, 1], bool)
    gains = window_gains(right, reference, 2)
    assert gains.tolist() == [0.5, -0.5, 0.0]  # the last image is no whole window
    assert (worst_drop(gains), share_below(gains)) == (0.5, 1 / 3)
    assert window_gains(right, reference).tolist() == [pytest.approx(-1 / 7)]
    assert worst_drop(window_gains(right, right, 2)) == 0
