from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmr.bench.running.row import Row, append_row, write_samples
from lmr.report.noted import Noted
from lmr.report.runs import Runs, read_runs
from lmr.report.series import Series, gather
from lmr.report.tables.distinction import tell_apart
from lmr.report.tables.gains import build_gains, compare_series
from row_maker import complete, make_row, make_samples

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
    found = compare_series(runs, ours, plain).value
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
    table = build_gains(runs, series[0].setting, series).value
    assert table is not None
    cells = {line.label: [cell.value for cell in line.cells[:3]] for line in table.lines}
    assert [line.cells[3].value for line in table.lines] == [500, 500]  # pictures
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
    found = compare_series(runs, ours, other).value
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
    assert [compare_series(runs, series[0], other).value for other in series[1:]] == [None, None, None]
    gains = build_gains(runs, series[0].setting, series)
    assert gains.value is None
    assert f"no samples of the run {gone.run}" in gains.notes[0]
    assert gains.notes[1].startswith("The table 'LMR minus others' is left out for cifar10-c, ")
    assert gains.notes[1].endswith("Not compared, as there are no answers to the same images: TENT, ETA, TDA.")
    assert build_gains(runs, series[0].setting, series[1:]) == Noted(None)  # nobody to compare with


def test_short_streams_of_several_seeds_need_no_picture_in_common(tmp_path: Path) -> None:
    """Every seed has other pictures; all of them count, and the mean is the difference of the accuracies."""
    random = np.random.default_rng(0)
    means: dict[str, list[float]] = {"LMR": [], "TENT": []}
    for seed in (1, 2, 3):
        for domain in ("frost", "fog"):
            index = np.arange(50) + 45 * seed  # five of them are those of the seed before
            for label, spec, share in (("LMR", OURS, 0.8), ("TENT", complete("tent"), 0.4)):
                right = random.random(50) < share
                means[label].append(float(right.mean()))
                write_answers(tmp_path, make_row(label, spec, domain, right.mean(), seed=seed), index, right)
    runs, series = read_series(tmp_path)
    table = build_gains(runs, series[0].setting, series).value
    assert table is not None
    mean, low, high, pictures = (cell.value for cell in table.lines[0].cells)
    assert mean == pytest.approx(100 * (np.mean(means["LMR"]) - np.mean(means["TENT"])))
    assert pictures == 140
    assert low is not None
    assert high is not None
    assert 10 < high - low < 30  # some 300 answers of 140 pictures


def test_ours_is_the_one_under_the_others_protocol(tmp_path: Path) -> None:
    """Like is compared with like, and other pictures with nothing."""
    index, right = np.arange(4), np.ones(4, bool)
    for size, images in ((64, 9), (16, 4)):
        write_answers(tmp_path, make_row("LMR", OURS, "frost", 1.0, batch_size=size, images=images), index, right)
    tent = complete("tent")
    write_answers(tmp_path, make_row("TENT", tent, "frost", 0.0, batch_size=16, images=4), index, ~right)
    write_answers(tmp_path, make_row("ETA", complete("eta"), "frost", 0.0, images=7), index, ~right)
    write_answers(tmp_path, make_row("made", tent, "frost", 0.0, data_digest="other"), index, ~right)
    write_answers(tmp_path, make_row("TDA", complete("tda"), "fog", 0.5), index, right)
    write_answers(tmp_path, make_row("LMR", OURS, "fog", 1.0, images=9), index, right)
    runs, series = read_series(tmp_path)
    table = build_gains(runs, series[0].setting, tell_apart(series)).value
    assert table is not None
    assert [line.label for line in table.lines] == [
        "LMR (batch 16, 4 images) − TENT",
        "LMR (batch 64, 9 images) − ETA",
        "LMR (batch 64, 9 images) − TDA",
    ]
    assert table.notes[2:] == (
        "Only over 1 of 2 domains: LMR (batch 16, 4 images) − TENT, LMR (batch 64, 9 images) − ETA, "
        "LMR (batch 64, 9 images) − TDA.",
        "Only over the images both have: LMR (batch 64, 9 images) − ETA, LMR (batch 64, 9 images) − TDA.",
        "Not compared, as there are no answers to the same images: made.",
    )
