"""Rank correlations and regrets counted by hand; accuracies are those of a bench."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lab.tune_judge import check_aims, correlate, find_labels, judge, judge_results, main, summarise_choosers
from lmr.apps.tune.sources import open_sources
from lmr.apps.tune.tune import tune_images
from lmr.bench.plans.plan import read_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running.run import run_task
from lmr.core.errors import LmrError
from lmr.data.pocket_world import CLASSES, draw, list_labels

NAMES = ["red star", "blue ring"]


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


def test_a_plan_is_judged_by_the_labels_of_its_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text(
        'datasets = "pocket-c@5"\ncorruptions = ["fog", "frost"]\nbackbones = "pocket"\nbatch_sizes = 16\nimages = 32\n'
        'methods = ["lmr", "lmr(lr=1e-2)", "zeroshot"]\n'
    )
    assert main([str(plan), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "pocket-c@5, fog, severity 5, batches of 16, seed 1: 32 images" in shown
    assert "Means over 2 streams" in shown
    sources = open_sources([plan])
    results = tune_images(sources, tmp_path / "out").results  # of the finished streams
    rows = [run_task(task, tmp_path / "runs") for task in list_tasks([read_plan(plan)])]
    expected = {(row.domain, row.spec): 100 * (row.metrics["accuracy"] or 0) for row in rows}
    found = {
        (result.source.split(", ")[1], entry.spec): accuracy
        for result, judged in zip(results, judge_results(sources, results, find_labels), strict=True)
        for entry, accuracy in zip(result.entries, judged.accuracies, strict=True)
    }
    assert found == pytest.approx(expected)


def test_a_folder_is_judged_by_its_sub_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = list_labels(3000, 5)
    for name in NAMES:
        (tmp_path / "photos" / name).mkdir(parents=True)
        indices = np.flatnonzero(labels == CLASSES.index(name))[:6]
        for index, pixels in zip(indices, draw(indices, 5)[0], strict=True):
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    words = ["--labels", ",".join(NAMES), "--over", "lr=1e-3,1e-2", "--model", "pocket", "--out", str(tmp_path / "out")]
    assert main([str(tmp_path / "photos"), *words]) == 0
    shown = capsys.readouterr().out
    accuracies = [float(line.split()[-1]) for line in shown.splitlines() if line.startswith("lr=")]
    assert len(accuracies) == 2
    assert min(accuracies) > 80  # an order of labels that does not fit the images would be near 50
    (source,) = open_sources([tmp_path / "photos"], labels=NAMES, over=["lr=1e-3,1e-2"], model="pocket")
    with pytest.raises(LmrError, match="sub-folder"):
        find_labels(source, [], NAMES)
