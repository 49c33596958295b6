"""What the rule recommends, case by case."""

from __future__ import annotations

import math

import pytest

from lmr.bench.tune.rule import choose_best, recommend


def score(diversity: float, agreement: float = 1.0) -> dict[str, float]:
    return {"diversity": diversity, "agreement": agreement}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([score(1.0), score(1.2), score(1.5)], 2),
        ([score(1.0), score(1.2), score(1.5, 0.49)], 1),  # it contradicts the frozen model
        ([score(1.0), score(1.2), score(1.5, 0.5)], 2),
        ([score(1.0, 0.1), score(0.9), score(0.8)], 0),  # the default may
        ([score(1.0), score(1.01), score(0.8)], 0),  # 1 % of ln(10) is 0.023
        ([score(1.0), score(1.03), score(0.8)], 1),
        ([score(1.0), score(math.nan), score(0.5)], 0),
        ([score(math.nan), score(0.2), score(0.3)], 2),
        ([score(math.nan), score(math.nan)], 0),
        ([score(1.0), score(1.5), score(1.5)], 1),
    ],
)
def test_recommendations(scores: list[dict[str, float]], expected: int) -> None:
    assert recommend(scores, classes=10) == expected


def test_more_classes_need_a_larger_gain() -> None:
    scores = [score(1.0), score(1.03)]
    assert [recommend(scores, classes) for classes in (2, 10, 100)] == [1, 1, 0]


def test_of_equal_values_the_default_wins() -> None:
    assert choose_best([1.0, 2.0, 2.0]) == 1
    assert choose_best([1.0, 2.0, 2.0], default=2) == 2
