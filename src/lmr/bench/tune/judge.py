"""The quality of choices by label-free scores, measured afterwards with labels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lmr.bench.tune.criteria import choose_best
from lmr.core.extras import require

POOR = 1.0  # points of regret above which a default is poor
LIMIT_WHERE_POOR = 0.5  # aim: the rule's mean regret there, in parts of the default's
LIMIT_WHERE_GOOD = 0.3  # aim: points that the rule may lose on average where the default is good

DEFAULT_CHOICE, RULE_CHOICE = "the default", "the rule"


@dataclass(frozen=True)
class StreamJudgement:
    """One stream: the accuracy of each entry in %, and of each chooser the entry it would take.

    A chooser is a criterion, which takes its largest score, the rule, or the default. ``spearman`` and ``kendall`` are
    the rank correlations of each criterion with accuracy.
    """

    accuracies: tuple[float, ...]
    choices: dict[str, int]
    spearman: dict[str, float]
    kendall: dict[str, float]

    def measure_regret(self, chooser: str) -> float:
        """Return the points of accuracy that a chooser's entry has less than the best one."""
        return max(self.accuracies) - self.accuracies[self.choices[chooser]]

    @property
    def is_poor(self) -> bool:
        """True if the default is more than a point below the best entry."""
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
    """Compare the scores of all entries, by criterion, with their accuracies in %."""
    columns = {name: [score[name] for score in scores] for name in scores[0]}
    return StreamJudgement(
        tuple(accuracies),
        {name: choose_best(values, default) for name, values in columns.items()}
        | {RULE_CHOICE: recommended, DEFAULT_CHOICE: default},
        {name: correlate("spearman", values, accuracies) for name, values in columns.items()},
        {name: correlate("kendall", values, accuracies) for name, values in columns.items()},
    )


def summarise_choosers(judgements: Sequence[StreamJudgement]) -> list[ChooserLine]:
    """Return one line for every chooser."""
    return [_summarise(name, judgements) for name in judgements[0].choices]


def check_aims(lines: Sequence[ChooserLine]) -> dict[str, bool]:
    """Return whether the rule reaches each of the two aims; an aim about streams that did not occur is left out."""
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
    """Return the mean without NaN; NaN if nothing is left."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def correlate(kind: Literal["spearman", "kendall"], first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's or Kendall's (tau-b) rank correlation; NaN if one side is constant or has NaN."""
    sides = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if any(np.isnan(side).any() or side.min() == side.max() for side in sides):
        return math.nan
    stats = require("scipy.stats", "bench", "Judging a choice by labels")
    return float((stats.spearmanr if kind == "spearman" else stats.kendalltau)(*sides).statistic)
