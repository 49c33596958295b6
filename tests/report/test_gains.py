"""Differences between methods against counts by hand, NumPy and SciPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import lmr
from lmr.bench.running.row import Row, append_row, write_samples
from lmr.report.gains import check_reference, compare_with_best, enter_groups, lay_gains
from lmr.report.groups import RunGroup, gather
from lmr.report.runs import Runs, read_runs
from lmr.report.table import Table
from row_maker import complete, make_row, make_samples

OURS = complete("lmr", "cifar10-c")
METHODS = {"LMR": OURS, "TENT": complete("tent"), "ETA": complete("eta"), "zero-shot": "zeroshot()"}


def build(runs: Runs, groups: list[RunGroup], reference: str | None = None) -> list[Table]:
    return [own.build() for own in lay_gains(runs, groups[0].setting, enter_groups(groups), reference)]


def write_four(folder: Path, seeds: tuple[int, ...] = (1, 2)) -> dict[str, dict[int, np.ndarray]]:
    """Runs of four methods on 300 images, and whether each answer is right, by method and seed."""
    random, index = np.random.default_rng(3), np.arange(300)
    shares = {"LMR": 0.7, "TENT": 0.62, "ETA": 0.61, "zero-shot": 0.5}
    right: dict[str, dict[int, np.ndarray]] = {}
    for seed in seeds:
        hard = random.random(300)
        for label, spec in METHODS.items():
            right.setdefault(label, {})[seed] = (hard < shares[label]) ^ (random.random(300) < 0.1)
            accuracy = float(right[label][seed].mean())
            write_answers(folder, make_row(label, spec, "frost", accuracy, seed=seed), index, right[label][seed])
    return right


def write_answers(folder: Path, row: Row, index: np.ndarray, right: np.ndarray) -> Row:
    samples = make_samples(row, images=len(index))
    samples |= {"index": index, "true": np.zeros(len(index), int), "predicted": np.where(right, 0, 1)}
    append_row(folder, row)
    write_samples(folder, row.run, samples)
    return row


def read_series(folder: Path) -> tuple[Runs, list[RunGroup]]:
    runs = read_runs([folder])
    ((_, series),) = gather(runs.rows).items()
    return runs, series


def test_pictures_are_paired_by_their_index(tmp_path: Path) -> None:
    """The other run has the same pictures in another order, and one more: a difference of exactly 3 in 4."""
    write_answers(tmp_path, make_row("LMR", OURS, "frost", 1.0), np.array([3, 1, 2, 0]), np.array([1, 1, 1, 1], bool))
    other = make_row("zero-shot", "zeroshot()", "frost", 0.2)
    write_answers(tmp_path, other, np.array([0, 1, 2, 3, 9]), np.array([0, 0, 0, 1, 1], bool))
    runs, series = read_series(tmp_path)
    (table,) = build(runs, series)
    mean, low, high, _, _, domains, seeds, count = (cell.value or 0.0 for cell in table.lines[0].cells)
    assert (mean, domains, seeds, count) == (pytest.approx(75), 1, 1, 4)
    assert low <= 75 <= high
    assert all(set(cell.runs) == {row.run for row in runs.rows} for cell in table.lines[0].cells)


def test_a_constant_difference_has_no_spread(tmp_path: Path) -> None:
    """Hard pictures are hard for both: if ours is right wherever the other is and once more, each draw pairs them."""
    random = np.random.default_rng(0)
    index, right = np.arange(500), random.random(500) < 0.5
    for domain in ("frost", "fog"):
        write_answers(tmp_path, make_row("LMR", OURS, domain, 1.0), index, np.ones(500, bool))
        write_answers(tmp_path, make_row("TENT", complete("tent"), domain, 0.0), index, np.zeros(500, bool))
        write_answers(tmp_path, make_row("ETA", complete("eta"), domain, 0.5), index, right)
    runs, series = read_series(tmp_path)
    (table,) = build(runs, series)
    cells = {line.label: [cell.value for cell in line.cells[:3]] for line in table.lines}
    assert [line.cells[7].value for line in table.lines] == [500, 500]  # pictures
    assert cells["LMR − TENT"] == pytest.approx([100, 100, 100])
    mean, low, high = cells["LMR − ETA"]
    assert mean is not None
    assert low is not None
    assert high is not None
    error = 196 * (0.25 / 500) ** 0.5  # both corruptions are the same pictures: 500, not 1000
    assert high - low == pytest.approx(2 * error, rel=0.1)
    assert low < mean < high


def test_without_samples_nothing_is_claimed(tmp_path: Path) -> None:
    index, right = np.arange(4), np.ones(4, bool)
    write_answers(tmp_path, make_row("LMR", OURS, "frost", 1.0), index, right)
    gone = write_answers(tmp_path, make_row("TENT", complete("tent"), "frost", 0.5), index, right)
    write_answers(tmp_path, make_row("ETA", complete("eta"), "frost", 0.5), index + 100, right)
    write_answers(tmp_path, make_row("TDA", complete("tda"), "fog", 0.5), index, right)
    (tmp_path / "samples" / f"{gone.run}.npz").unlink()
    runs, series = read_series(tmp_path)
    assert build(runs, series) == []
    assert gone.run in runs.notes[0]
    assert build(runs, series[1:]) == []  # nobody to compare with


def test_the_reference_can_be_any_method(tmp_path: Path) -> None:
    right = write_four(tmp_path)
    runs, series = read_series(tmp_path)
    (table,) = build(runs, series, "tent")
    assert table.title.startswith("TENT minus others")
    assert [line.label for line in table.lines] == ["TENT − LMR", "TENT − ETA", "TENT − zero-shot"]
    assert [column.head for column in table.columns] == [
        "difference", "2.5 %", "97.5 %", "± images", "± orders", "domains", "orders", "images",
    ]  # fmt: skip
    for line in table.lines:
        other = right[line.label.removeprefix("TENT − ")]
        each = np.array([right["TENT"][seed].astype(float) - other[seed] for seed in (1, 2)])  # [seeds, images]
        parts = [100 * np.ptp(stats.ttest_1samp(each.mean(k), 0).confidence_interval(0.95)) / 2 for k in (0, 1)]
        mean, half = 100 * each.mean(), np.hypot(*parts)
        expected = [mean, max(-100, mean - half), min(100, mean + half), *parts]
        assert [cell.value for cell in line.cells[:5]] == pytest.approx(expected, rel=1e-5)
        assert [cell.value for cell in line.cells[5:]] == [1, 2, 300]
    with pytest.raises(lmr.LmrError, match=r"No run is of the reference 'tnet'.*Did you mean 'tent'"):
        check_reference("tnet", series)


def test_the_best_of_many_is_compared_on_what_it_was_not_chosen_on(tmp_path: Path) -> None:
    """Of twenty methods that guess like ours, the best looks better; elsewhere it is not."""
    random, index = np.random.default_rng(5), np.arange(200)
    seeds, rows, gaps = (1, 2, 3), [], []
    for number in range(21):
        for seed in seeds:
            right = random.random(200) < 0.5
            row = make_row(f"M{number}", f"tent(lr={1 + number})", "fog", float(right.mean()), seed=seed, images=200)
            rows.append(write_answers(tmp_path, row, index, right))
    runs = read_runs([tmp_path])
    by_method = [dict(zip(seeds, rows[first : first + 3], strict=True)) for first in range(0, 63, 3)]
    for number in range(21):
        found = compare_with_best(runs, by_method[number], by_method[:number] + by_method[number + 1 :])
        assert found is not None
        gaps.append((found.ours - found.best, 100 * found.difference.mean))
        assert found.difference.low < 0 < found.difference.high
    plain, fair = np.mean(gaps, axis=0)
    assert plain < -2.5
    assert abs(fair) < 1.5
    assert compare_with_best(runs, by_method[0], []) is None
