"""The figure of the long haul: its lines are differences of counted answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lmr.bench.running.row import append_row, write_samples
from lmr.report.figures.haul_figure import collect_lines, draw_hauls, is_haul_figure
from lmr.report.in_life import find_groups
from lmr.report.runs import read_runs
from lmr.report.series import gather
from row_maker import complete, make_row, make_samples

ORDER = {"kind": "haul", "hash": "h"}


def add(folder: Path, label: str, spec: str, right: list[int], seed: int = 1, severity: int = 5) -> None:
    answers = np.concatenate([np.arange(1000) < count for count in right])
    fields = {"dataset": "pocket-c-100000", "images": len(answers), "order": ORDER, "seed": seed}
    row = make_row(label, spec, "blend", float(answers.mean()), severity=severity, **fields)
    append_row(folder, row)
    counted = {"true": np.zeros(len(answers), int), "predicted": np.where(answers, 0, 1)}
    write_samples(folder, row.run, make_samples(row, images=len(answers)) | counted)


def test_lines_are_means_over_seeds_in_points(tmp_path: Path) -> None:
    for seed, more in ((1, 0), (2, 100)):
        add(tmp_path, "zero-shot", "zeroshot()", [500, 400, 300], seed)
        add(tmp_path, "LMR", complete("lmr"), [600 + more, 400, 100], seed)
        add(tmp_path, "TENT", complete("tent"), [400, 300], seed)  # no zero-shot on a stream of this length
    runs = read_runs([tmp_path])
    settings = gather(runs.rows)
    (group,) = find_groups(settings)
    (line,) = collect_lines(runs, group).value[5]
    assert (line.label, line.seeds) == ("LMR", 2)
    np.testing.assert_allclose(line.gains, [15, 0, -20])
    (drawing,) = draw_hauls(runs, settings).value
    assert (drawing.name, drawing.number) == ("figure-haul", "haul")
    assert "mean of 2 seeds" in drawing.caption
    assert "LMR" in drawing.svg
    assert is_haul_figure(drawing.name)
    assert not is_haul_figure("figure-1a")


def test_every_severity_has_a_figure(tmp_path: Path) -> None:
    for severity, right in ((5, 600), (2, 900)):
        add(tmp_path, "zero-shot", "zeroshot()", [500], severity=severity)
        add(tmp_path, "LMR", complete("lmr"), [right], severity=severity)
    runs = read_runs([tmp_path])
    settings = gather(runs.rows)
    (group,) = find_groups(settings)
    found = collect_lines(runs, group).value
    assert {severity: [(line.label, *line.gains) for line in lines] for severity, lines in found.items()} == {
        5: [("LMR", 10.0)],
        2: [("LMR", 40.0)],
    }
    drawings = draw_hauls(runs, settings).value
    assert [drawing.name[-3:] for drawing in drawings] == ["-s5", "-s2"]
    assert ["severity 5" in drawing.caption for drawing in drawings] == [True, False]
    assert all(is_haul_figure(drawing.name) for drawing in drawings)


def test_without_a_haul_there_is_no_figure(tmp_path: Path) -> None:
    add(tmp_path, "zero-shot", "zeroshot()", [500])
    runs = read_runs([tmp_path])
    assert draw_hauls(runs, gather(runs.rows)).value == ()
