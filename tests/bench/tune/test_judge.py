"""Rank correlations and regrets counted by hand."""

from __future__ import annotations

import math

import pytest

from lmr.bench.tune.judge import check_aims, correlate, judge, summarise_choosers


def test_rank_correlations() -> None:
    """Spearman's: 1 - 6 (0 + 1 + 1 + 1 + 1) / (5 (25 - 1)). Kendall's: two of ten pairs are in the other order."""
    first, second = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0]
    assert correlate("spearman", first, second) == pytest.approx(1 - 6 * 4 / 120)
    assert correlate("kendall", first, second) == pytest.approx((8 - 2) / 10)
    assert correlate("spearman", [1.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))  # ties


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1.0, math.nan, 2.0]])
def test_a_constant_or_missing_score_has_no_correlation(values: list[float]) -> None:
    assert math.isnan(correlate("spearman", values, [1.0, 2.0, 3.0]))
    assert math.isnan(correlate("kendall", values, [1.0, 2.0, 3.0]))


def test_regrets() -> None:
    scores = [{"good": 0.1, "bad": 3.0}, {"good": 0.3, "bad": 2.0}, {"good": 0.2, "bad": math.nan}]
    poor = judge(scores, [60.0, 70.0, 65.0], recommended=2)
    fine = judge(scores, [70.0, 69.5, 69.0], recommended=1)
    assert poor.is_poor
    assert not fine.is_poor
    assert [poor.measure_regret(name) for name in ("good", "bad", "the rule", "the default")] == [0, 10, 5, 10]
    lines = {line.chooser: line for line in summarise_choosers([poor, fine])}
    assert list(lines) == ["good", "bad", "the rule", "the default"]
    assert lines["the rule"].regret == pytest.approx((5 + 0.5) / 2)
    assert (lines["the rule"].poor, lines["the rule"].lost, lines["the rule"].worst) == (5, 0.5, 5)
    assert (lines["the default"].poor, lines["the default"].lost) == (10, 0)
    assert lines["good"].spearman == pytest.approx((1.0 - 0.5) / 2)
    assert math.isnan(lines["the rule"].spearman)
    assert list(check_aims(list(lines.values())).values()) == [True, False]


def test_an_aim_about_streams_that_did_not_occur_is_left_out() -> None:
    lines = summarise_choosers([judge([{"a": 1.0}, {"a": 2.0}], [70.0, 70.5], recommended=1)])
    assert list(check_aims(lines).values()) == [True]
    assert math.isnan(lines[-1].poor)
