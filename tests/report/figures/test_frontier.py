"""Accuracy against cost: which runs are compared, which are best, and the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmr.bench.running.row import Row
from lmr.report.figures.frontier import collect_frontier
from lmr.report.figures.paper_figures import draw_figures
from lmr.report.runs import read_runs
from lmr.report.series import gather
from row_maker import complete, make_row, write_runs

POINTS = {
    "zeroshot": (1.0, 0.50),
    "tent": (2.0, 0.49),
    "lmr": (3.0, 0.56),
    "lmr(emit='before')": (2.0, 0.55),
    "lmr(share=0.25)": (1.5, 0.54),
    "lmr(share=0.5)": (2.0, 0.545),
}


def make_rows(**changes: Any) -> list[Row]:
    rows = []
    for spec, (forwards, accuracy) in POINTS.items():
        emit = "before" if "before" in spec else "after"
        for domain, shift in (("frost", 0.1), ("fog", -0.1)):
            numbers = {"forwards": forwards + shift, "emit": emit} | changes
            rows.append(make_row(spec, complete(spec, "cifar10-c"), domain, accuracy + shift, **numbers))
    return rows


def test_points_and_the_best_of_them() -> None:
    ((setting, series),) = gather(make_rows()).items()
    frontier = collect_frontier(setting, series)
    assert frontier is not None
    found = {point.label: (round(point.forwards, 6), round(point.accuracy, 6)) for point in frontier.points}
    assert {label: (cost, accuracy / 100) for label, (cost, accuracy) in found.items()} == POINTS
    assert [point.label for point in frontier.best] == ["zeroshot", "lmr(share=0.25)", "lmr(emit='before')", "lmr"]
    assert {point.label for point in frontier.points if point.switched} == {spec for spec in POINTS if "(" in spec}


def test_only_runs_under_one_protocol_with_counted_costs() -> None:
    """Rows of earlier versions have no cost; other batch sizes are another protocol."""
    rows = make_rows() + make_rows(batch_size=8, forwards=9.0)[:8] + make_rows(seed=2, forwards=None)
    ((setting, series),) = gather(rows).items()
    frontier = collect_frontier(setting, series)
    assert frontier is not None
    assert max(point.forwards for point in frontier.points) == 3
    assert frontier.where.endswith("batch 64, 1 seed")
    ((setting, series),) = gather(make_rows(forwards=None)).items()
    assert collect_frontier(setting, series) is None
    ((setting, series),) = gather(row for row in make_rows() if "(" not in row.label).items()
    assert collect_frontier(setting, series) is None


def test_steps_of_ablations_and_sweeps_are_no_points() -> None:
    """A part that is off may be a switch, and is in ablations too: it needs another switch beside it."""
    steps = ("lmr(am=False)", "lmr(am=False, bc=False)", "lmr(delta=0.05)", "lmr(lr=0.1)", "tent(lr=0.1)")
    rows = [make_row(s, complete(s, "cifar10-c"), d, 0.6, forwards=1.1) for s in steps for d in ("frost", "fog")]
    part = [make_row("off", complete("lmr(pmr=False)", "cifar10-c"), d, 0.4, forwards=1.0) for d in ("frost", "fog")]
    more = [make_row("blocks", complete("lmr(blocks=3)", "cifar10-c"), d, 0.4, forwards=1.5) for d in ("frost", "fog")]
    plain = [row for row in make_rows() if "(" not in row.label]
    ((setting, series),) = gather([*plain, *rows, *part]).items()
    assert collect_frontier(setting, series) is None
    ((setting, series),) = gather([*make_rows(), *rows, *part, *more]).items()
    frontier = collect_frontier(setting, series)
    assert frontier is not None
    assert {point.label for point in frontier.points} == {*POINTS, "off", "blocks"}
    assert {point.label for point in frontier.points if not point.switched} == {"zeroshot", "tent", "lmr"}


def test_figure(tmp_path: Path) -> None:
    write_runs(tmp_path, make_rows(), samples=False)
    runs = read_runs([tmp_path])
    figures = draw_figures(runs, gather(runs.rows))
    (drawing,) = figures.drawings
    assert drawing.name == "figure-frontier"
    for spec in POINTS:
        assert spec.replace("'", "&apos;") in drawing.svg or spec in drawing.svg
    assert "lmr(share=0.25) (1.50: 54.0 %)" in drawing.caption
    assert not any("frontier" in words for words in figures.missing)
