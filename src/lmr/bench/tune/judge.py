"""How well label-free scores would have chosen, told afterwards with labels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmr.bench.tune.rule import choose_best

POOR = 1.0  # points of regret above which a default is poor
LIMIT_WHERE_POOR = 0.5  # aim: the rule's mean regret there, in parts of the default's
LIMIT_WHERE_GOOD = 0.3  # aim: points that the rule may lose on average where the default is good

DEFAULT_CHOICE, RULE_CHOICE = "the default", "the rule"


@dataclass(frozen=True)
class StreamJudgement:
    """One stream: the accuracy of each candidate in %, and of each chooser the candidate it would take.

    A chooser is a criterion, which takes its largest score, the rule, or the default. ``spearman`` and ``kendall`` are
    the rank correlations of each criterion with accuracy.
    """

    accuracies: tuple[float, ...]
    choices: dict[str, int]
    spearman: dict[str, float]
    kendall: dict[str, float]

    def measure_regret(self, chooser: str) -> float:
        """Points of accuracy that a chooser's candidate has less than the best one."""
        return max(self.accuracies) - self.accuracies[self.choices[chooser]]

    @property
    def is_poor(self) -> bool:
        """Whether the default is more than a point below the best candidate."""
        return self.measure_regret(DEFAULT_CHOICE) > POOR


@dataclass(frozen=True)
class ChooserLine:
    """A chooser over several streams: mean correlations (NaN for rule and default) and mean regrets in points.

    ``poor`` is the mean regret where the default is poor, ``lost`` what it has less than the default where that is
    good; NaN where there are no such streams.
    """

    chooser: str
    spearman: float
    kendall: float
    regret: float
    worst: float
    poor: float
    lost: float


def judge(
    scores: Sequence[Mapping[str, float]], accuracies: Sequence[float], recommended: int, default: int = 0
) -> StreamJudgement:
    """Compare the scores of all candidates, by criterion, with their accuracies in %."""
    columns = {name: [score[name] for score in scores] for name in scores[0]}
    return StreamJudgement(
        tuple(accuracies),
        {name: choose_best(values, default) for name, values in columns.items()}
        | {RULE_CHOICE: recommended, DEFAULT_CHOICE: default},
        {name: correlate_by_spearman(values, accuracies) for name, values in columns.items()},
        {name: correlate_by_kendall(values, accuracies) for name, values in columns.items()},
    )


def summarise_choosers(judgements: Sequence[StreamJudgement]) -> list[ChooserLine]:
    """One line for every chooser."""
    return [_summarise(name, judgements) for name in judgements[0].choices]


def check_aims(lines: Sequence[ChooserLine]) -> dict[str, bool]:
    """Which of the two aims the rule reaches; an aim about streams that did not occur is left out."""
    rule, default = (next(line for line in lines if line.chooser == name) for name in (RULE_CHOICE, DEFAULT_CHOICE))
    aims = {}
    if not math.isnan(rule.poor):
        aims["where the default is poor, at most half of its regret"] = rule.poor <= LIMIT_WHERE_POOR * default.poor
    if not math.isnan(rule.lost):
        aims[f"where the default is good, at most {LIMIT_WHERE_GOOD} points lost"] = rule.lost <= LIMIT_WHERE_GOOD
    return aims


def _summarise(chooser: str, judgements: Sequence[StreamJudgement]) -> ChooserLine:
    regrets = [judgement.measure_regret(chooser) for judgement in judgements]
    poor = [regret for regret, one in zip(regrets, judgements, strict=True) if one.is_poor]
    lost = [
        regret - one.measure_regret(DEFAULT_CHOICE)
        for regret, one in zip(regrets, judgements, strict=True)
        if not one.is_poor
    ]
    spearman = [one.spearman.get(chooser, math.nan) for one in judgements]
    kendall = [one.kendall.get(chooser, math.nan) for one in judgements]
    return ChooserLine(
        chooser, _average(spearman), _average(kendall), _average(regrets), max(regrets), _average(poor), _average(lost)
    )


def _average(values: Sequence[float]) -> float:
    """The mean without NaN; NaN if nothing is left."""
    sound = [value for value in values if not math.isnan(value)]
    return math.fsum(sound) / len(sound) if sound else math.nan


def correlate_by_spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation: equal values share their mean rank; NaN if one side is constant or has NaN."""
    a, b = _rank(np.asarray(first, np.float64)), _rank(np.asarray(second, np.float64))
    a, b = a - a.mean(), b - b.mean()
    length = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / length if length > 0 else math.nan


def correlate_by_kendall(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's rank correlation tau-b; NaN if one side is constant or has NaN."""
    a, b = (np.sign(np.subtract.outer(side, side)) for side in (np.asarray(first), np.asarray(second)))
    length = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / length if length > 0 else math.nan


def _rank(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks [N] from 0; equal values share their mean."""
    below = (values[:, None] > values[None, :]).sum(1)
    equal = (values[:, None] == values[None, :]).sum(1)
    ranks: NDArray[np.float64] = below + (equal - 1) / 2
    return np.where(np.isnan(values), np.nan, ranks)
