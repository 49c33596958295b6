from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmr.bench.gains import build_gains, compare_series
from lmr.bench.gather import Runs, Series, gather, read_runs
from lmr.bench.row import Row, append_row, write_samples

from .row_maker import complete, make_row, make_samples

OURS = complete("lmr", "cifar10-c")


def write_answers(folder: Path, row: Row, index: np.ndarray, right: np.ndarray) -> Row:
    samples = make_samples(row, images=len(index))
    samples |= {"index": index, "true": np.zeros(len(index), int), "predicted": np.where(right, 0, 1)}
    append_row(folder, row)
    write_samples(folder, row.run, samples)
    return row


def read_series(folder: Path) -> tuple[Runs, list[Series]]:
    runs = read_runs([folder])
    ((_, series),) = gather(runs.rows).items()
    return runs, series


def test_pictures_are_paired_by_their_index(tmp_path: Path) -> None:
    """The other run has the same pictures in another order, and one more: a difference of exactly 3 in 4."""
    write_answers(tmp_path, make_row("LMR", OURS, "frost", 1.0), np.array([3, 1, 2, 0]), np.array([1, 1, 1, 1], bool))
    other = make_row("zero-shot", "zeroshot()", "frost", 0.2)
    write_answers(tmp_path, other, np.array([0, 1, 2, 3, 9]), np.array([0, 0, 0, 1, 1], bool))
    runs, (ours, plain) = read_series(tmp_path)
    found = compare_series(runs, ours, plain)
    assert found is not None
    assert found.mean == pytest.approx(0.75)
    assert found.low <= 0.75 <= found.high


def test_a_constant_difference_has_no_spread(tmp_path: Path) -> None:
    """Hard pictures are hard for both: if ours is right wherever the other is and once more, each draw pairs them."""
    random = np.random.default_rng(0)
    index, right = np.arange(500), random.random(500) < 0.5
    for domain in ("frost", "fog"):
        write_answers(tmp_path, make_row("LMR", OURS, domain, 1.0), index, np.ones(500, bool))
        write_answers(tmp_path, make_row("TENT", complete("tent"), domain, 0.0), index, np.zeros(500, bool))
        write_answers(tmp_path, make_row("ETA", complete("eta"), domain, 0.5), index, right)
    runs, series = read_series(tmp_path)
    table = build_gains(runs, series[0].setting, series)
    assert table is not None
    cells = {line.label: [cell.value for cell in line.cells] for line in table.lines}
    assert cells["LMR − TENT"] == pytest.approx([100, 100, 100])
    mean, low, high = cells["LMR − ETA"]
    assert mean is not None
    assert low is not None
    assert high is not None
    error = 196 * (0.25 / 500) ** 0.5  # both corruptions are the same pictures: 500, not 1000
    assert high - low == pytest.approx(2 * error, rel=0.1)
    assert low < mean < high


def test_a_picture_met_several_times_in_a_stream_counts_each_time(tmp_path: Path) -> None:
    fields = {"reset": "never", "domains": {"frost": 0.5, "fog": 0.5}}
    index = np.array([0, 1, 0, 1])
    write_answers(tmp_path, make_row("LMR", OURS, "continual", 1.0, **fields), index, np.array([1, 1, 0, 0], bool))
    write_answers(
        tmp_path, make_row("TENT", complete("tent"), "continual", 0.5, **fields), index, np.array([0, 0, 0, 1], bool)
    )
    runs, (ours, other) = read_series(tmp_path)
    found = compare_series(runs, ours, other)
    assert found is not None
    assert found.mean == pytest.approx(0.25)


def test_without_samples_nothing_is_claimed(tmp_path: Path) -> None:
    index, right = np.arange(4), np.ones(4, bool)
    write_answers(tmp_path, make_row("LMR", OURS, "frost", 1.0), index, right)
    gone = write_answers(tmp_path, make_row("TENT", complete("tent"), "frost", 0.5), index, right)
    write_answers(tmp_path, make_row("ETA", complete("eta"), "frost", 0.5), index + 100, right)
    write_answers(tmp_path, make_row("TDA", complete("tda"), "fog", 0.5), index, right)
    (tmp_path / "samples" / f"{gone.run}.npz").unlink()
    runs, series = read_series(tmp_path)
    assert [compare_series(runs, series[0], other) for other in series[1:]] == [None, None, None]
    assert build_gains(runs, series[0].setting, series) is None
    assert build_gains(runs, series[0].setting, series[1:]) is None  # nobody to compare with
