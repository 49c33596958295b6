"""Every criterion against a reference in plain NumPy, written from its definition, and on answers one can judge."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmr.bench.tune.criteria import CRITERIA, Evidence, choose_best, recommend

Array = NDArray[np.float64]


def make_evidence(images: int = 40, classes: int = 7, seed: int = 0, sharp: float = 3.0) -> Evidence:
    random = torch.Generator().manual_seed(seed)
    return Evidence(*((sharp * torch.randn(images, classes, generator=random)).softmax(1) for _ in range(2)))


def entropy(p: Array) -> float:
    return -sum(float(x) * math.log(float(x)) for x in p if x > 0)


def by_entropy(p: Array, frozen: Array) -> float:
    return -float(np.mean([entropy(row) for row in p]))


def by_diversity(p: Array, frozen: Array) -> float:
    return entropy(p.mean(0))


def by_information(p: Array, frozen: Array) -> float:
    """As a Kullback-Leibler divergence from the mean answer."""
    mean = p.mean(0)
    return float(np.mean([(row * np.log(row / mean)).sum() for row in p]))


def by_agreement(p: Array, frozen: Array) -> float:
    order = sorted(range(len(p)), key=lambda k: -float(frozen[k].max()))[: round(len(p) / 4)]
    return float(np.mean([p[k].argmax() == frozen[k].argmax() for k in order]))


REFERENCES: dict[str, Callable[[Array, Array], float]] = {
    "entropy": by_entropy,
    "diversity": by_diversity,
    "information": by_information,
    "agreement": by_agreement,
}


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("seed", range(3))
def test_criteria_are_those_of_the_reference(name: str, seed: int) -> None:
    evidence = make_evidence(seed=seed)
    arrays = (part.double().numpy() for part in (evidence.probabilities, evidence.frozen))
    assert CRITERIA[name](evidence) == pytest.approx(REFERENCES[name](*arrays), rel=1e-5)


def test_a_collapse_is_seen() -> None:
    """All images in one class: certain, but with no information."""
    good = torch.eye(4).repeat(8, 1) * 0.96 + 0.01
    collapsed = good[:1].expand(32, 4)
    one, other = Evidence(good, good), Evidence(collapsed, good)
    assert CRITERIA["entropy"](one) == pytest.approx(CRITERIA["entropy"](other))
    for name in ("diversity", "information", "agreement"):
        assert CRITERIA[name](one) > CRITERIA[name](other) + 0.1


def test_an_answer_that_is_not_finite_gives_no_score() -> None:
    evidence = make_evidence()
    evidence.probabilities[3] = math.nan
    for name in ("entropy", "diversity", "information"):
        assert math.isnan(CRITERIA[name](evidence))


# The rule.


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
