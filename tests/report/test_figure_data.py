from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmr.bench.running.row import Row, append_row, write_samples
from lmr.report import figure_data as data
from lmr.report.figure_data import collect_frontier, collect_hauls
from lmr.report.figures import draw_figures, is_figure
from lmr.report.groups import gather
from lmr.report.leaderboard import find_worlds
from lmr.report.runs import Runs, read_runs
from lmr.report.traits import LineKind
from row_maker import complete, make_row, make_samples, write_runs

FIELDS: dict[str, Any] = {"dataset": "pocket-c", "images": 6}


def add(folder: Path, row: Row, **arrays: Any) -> None:
    """A row with samples of six pictures, some of them given."""
    samples = make_samples(row, classes=4, images=6) | {key: np.array(value) for key, value in arrays.items()}
    append_row(folder, row)
    write_samples(folder, row.run, samples)


def read(folder: Path) -> tuple[Runs, data.Family]:
    runs = read_runs([folder])
    (family,) = data.find_families(gather(runs.rows))
    return runs, family


def test_gaps_are_those_of_errors_on_the_shift(tmp_path: Path) -> None:
    arrays = {"true": [0, 1, 2, 3, 0, 1], "predicted": [0, 2, 2, 0, 1, 0], "gap": [0, 0.04, 0, 0.01, np.nan, 0.02]}
    add(tmp_path, make_row("zero-shot", "zeroshot()", "fog", 0.5, **FIELDS))
    add(tmp_path, make_row("zero-shot", "zeroshot()", "snow", 0.5, **FIELDS | {"images": 9}))  # a single longer run
    add(tmp_path, make_row("zero-shot", "zeroshot()", "frost", 0.5, **FIELDS), **arrays)
    add(tmp_path, make_row("LMR", complete("lmr"), "frost", 0.5, **FIELDS))
    found = data.collect_gaps(*read(tmp_path))
    assert found is not None
    where, gaps = found.where, found.data
    assert where == "pocket-c, openai/clip-vit-base-patch16, severity 5, frost, 6 images, seed 1"
    np.testing.assert_allclose(gaps, [0.01, 0.02, 0.04])


def test_no_errors_is_no_figure(tmp_path: Path) -> None:
    row = make_row("zero-shot", "zeroshot()", "frost", 1.0, **FIELDS)
    add(tmp_path, row, true=[0] * 6, predicted=[0] * 6)
    assert data.collect_gaps(*read(tmp_path)) is None


def test_margins_are_medians_by_severity(tmp_path: Path) -> None:
    for severity in (1, 3, 5):
        for domain, factor in (("frost", 1.0), ("fog", 2.0)):
            margin = [factor / severity, np.nan, 0.0, 9.0, factor / severity, factor / severity]
            row = make_row("zero-shot", "zeroshot()", domain, 0.5, severity=severity, **FIELDS)
            add(tmp_path, row, margin=margin)
    add(tmp_path, make_row("zero-shot", "zeroshot()", "snow", 0.5, severity=5, **FIELDS))
    found = data.collect_margins(*read(tmp_path))
    assert found is not None
    assert found.where == "pocket-c, openai/clip-vit-base-patch16, 6 images"
    assert found.data == {"frost": {1: 1.0, 3: 1 / 3, 5: 0.2}, "fog": {1: 2.0, 3: 2 / 3, 5: 0.4}}


def test_margins_that_are_nowhere_defined_are_left_out(tmp_path: Path) -> None:
    for severity in (1, 5):
        row = make_row("zero-shot", "zeroshot()", "frost", 0.5, severity=severity, **FIELDS)
        add(tmp_path, row, margin=[np.nan] * 6)
    assert data.collect_margins(*read(tmp_path)) is None


def test_mass_accumulates_from_the_largest_class(tmp_path: Path) -> None:
    np.testing.assert_allclose(data.accumulate_classes(np.array([3, 3, 1, 3, 0]), 5), [0.6, 0.8, 1, 1, 1])
    shifted = make_row("zero-shot", "zeroshot()", "frost", 0.5, **FIELDS)
    add(tmp_path, shifted, true=[0, 0, 1, 1, 2, 3], predicted=[1, 1, 1, 1, 1, 2])
    assert data.collect_mass(*read(tmp_path)) is None  # clean pictures are missing
    clean = make_row("zero-shot", "zeroshot()", "clean", 0.5, **FIELDS)
    add(tmp_path, clean, true=[0, 0, 1, 1, 2, 3], predicted=[0, 1, 1, 1, 2, 3])
    found = data.collect_mass(*read(tmp_path))
    assert found is not None
    where, mass = found.where, found.data
    assert where == "pocket-c, openai/clip-vit-base-patch16, severity 5, frost, 6 images clean and shifted"
    np.testing.assert_allclose(mass["shifted predictions"], [5 / 6, 1, 1, 1])
    np.testing.assert_allclose(mass["clean predictions"], [3 / 6, 4 / 6, 5 / 6, 1])
    np.testing.assert_allclose(mass["labels"], [2 / 6, 4 / 6, 5 / 6, 1])


def test_mass_is_of_the_same_pictures_and_of_all_classes(tmp_path: Path) -> None:
    """Three clean pictures against six shifted ones would look more concentrated than they are."""
    fields = FIELDS | {"protocol": {"classes": "7"}}
    shifted = make_row("zero-shot", "zeroshot()", "frost", 0.5, **fields)
    add(tmp_path, shifted, index=[0, 1, 2, 3, 4, 5], true=[0, 0, 1, 1, 2, 3], predicted=[1, 1, 1, 1, 1, 2])
    clean = make_row("zero-shot", "zeroshot()", "clean", 0.5, **fields | {"images": 3})
    short = {key: np.zeros(3) for key in ("confidence", "gap", "margin", "recovery")}
    add(tmp_path, clean, index=[5, 3, 9], true=[3, 1, 2], predicted=[3, 1, 2], **short)
    found = data.collect_mass(*read(tmp_path))
    assert found is not None
    where, mass = found.where, found.data
    assert where.endswith("frost, 2 images clean and shifted")
    for line in mass.values():
        np.testing.assert_allclose(line, [0.5, 1, 1, 1, 1, 1, 1])


def test_mass_without_a_picture_in_common_is_no_figure(tmp_path: Path) -> None:
    add(tmp_path, make_row("zero-shot", "zeroshot()", "frost", 0.5, **FIELDS))
    add(tmp_path, make_row("zero-shot", "zeroshot()", "clean", 0.5, **FIELDS), index=np.arange(6) + 10)
    assert data.collect_mass(*read(tmp_path)) is None


def test_late_shares_are_of_runs_alike(tmp_path: Path) -> None:
    for spec, share, images in (("lmr(am=False, bc=False)", 0.4, 6), ("lmr(bc=False)", 0.1, 60)):
        fields = FIELDS | {"images": images, "late_top_share": share}
        add(tmp_path, make_row("x", complete(spec), "frost", 0.5, **fields))
    assert data.collect_late_shares(*read(tmp_path)) is None


def test_late_shares_are_of_pmr_without_and_with_am(tmp_path: Path) -> None:
    parts = {"lmr(am=False, bc=False)": 0.4, "lmr(bc=False)": 0.1, "lmr(am=False)": 0.9, "lmr": 0.8}
    for spec, share in list(parts.items())[1:]:
        add(tmp_path, make_row("x", complete(spec), "frost", 0.5, late_top_share=share, **FIELDS))
    assert data.collect_late_shares(*read(tmp_path)) is None
    add(tmp_path, make_row("x", complete("lmr(am=False, bc=False)"), "frost", 0.5, late_top_share=0.4, **FIELDS))
    found = data.collect_late_shares(*read(tmp_path))
    assert found is not None
    assert found.where.endswith("severity 5, frost, 6 images, seed 1, batch 64")
    assert found.data == {"PMR only": 40.0, "PMR + AM": 10.0}


def test_recovery_is_over_zero_shots_errors_on_common_domains(tmp_path: Path) -> None:
    nan = np.nan
    add(tmp_path, make_row("TENT", complete("tent"), "frost", 0.5, **FIELDS), recovery=[nan, nan, -1, -1, -1, -1])
    add(tmp_path, make_row("TENT", complete("tent"), "fog", 0.5, **FIELDS), recovery=[7.0] * 6)
    assert data.collect_recovery(*read(tmp_path)) is None  # nothing to compare with
    add(tmp_path, make_row("LMR", complete("lmr"), "frost", 0.5, **FIELDS), recovery=[nan, nan, 0, 1, 2, 3])
    add(tmp_path, make_row("ETA", complete("eta"), "frost", 0.5, **FIELDS), recovery=[9.0] * 6)
    add(tmp_path, make_row("TDA", complete("tda"), "frost", 0.5, **FIELDS), recovery=[nan] * 6)  # not measured
    add(tmp_path, make_row("fast", complete("lmr(lr=0.5)"), "frost", 0.5, **FIELDS), recovery=[9.0] * 6)
    found = data.collect_recovery(*read(tmp_path))
    assert found is not None
    where, lines = found.where, found.data
    assert where.endswith("severity 5, frost, 6 images each")
    assert {label: line.kind for label, line in lines.items()} == {
        "TENT": LineKind.OTHER,
        "LMR": LineKind.OURS,
        "ETA": LineKind.OTHER,
    }
    np.testing.assert_allclose(lines["TENT"].percentiles, -1)
    assert lines["LMR"].percentiles[49] == pytest.approx(1.5)  # the median


def test_recovery_is_of_as_many_images_each(tmp_path: Path) -> None:
    for name, images in (("tent", 6), ("lmr", 6), ("lmr", 60), ("mint", 60), ("tent", 7)):
        fields = FIELDS | {"images": images}
        add(tmp_path, make_row(name, complete(name), "frost", 0.5, **fields), recovery=[float(images)] * 6)
    found = data.collect_recovery(*read(tmp_path))
    assert found is not None
    assert set(found.data) == {"lmr", "mint"}
    assert found.data["lmr"].percentiles[0] == 60


def test_a_run_without_recovery_does_not_hide_one_with_it(tmp_path: Path) -> None:
    """The main plan and the one about recovery both have such a run."""
    for name in ("tent", "lmr"):
        add(tmp_path, make_row(name, complete(name), "frost", 0.5, **FIELDS), recovery=[1.0] * 6)
        later = make_row(name, complete(name), "frost", 0.5, finished="2027-01-01", **FIELDS)
        add(tmp_path, later, recovery=[np.nan] * 6)
    assert data.collect_recovery(*read(tmp_path)) is not None


POINTS = {
    "zeroshot": (1.0, 0.50),
    "tent": (2.0, 0.49),
    "lmr": (3.0, 0.56),
    "lmr(emit='before')": (2.0, 0.55),
    "lmr(share=0.25)": (1.5, 0.54),
    "lmr(share=0.5)": (2.0, 0.545),
}


def make_cost_rows(**changes: Any) -> list[Row]:
    rows = []
    for spec, (forwards, accuracy) in POINTS.items():
        emit = "before" if "before" in spec else "after"
        for domain, shift in (("frost", 0.1), ("fog", -0.1)):
            numbers = {"forwards": forwards + shift, "emit": emit} | changes
            rows.append(make_row(spec, complete(spec, "cifar10-c"), domain, accuracy + shift, **numbers))
    return rows


def test_points_and_the_best_of_them() -> None:
    ((setting, series),) = gather(make_cost_rows()).items()
    frontier = collect_frontier(setting, series)
    assert frontier is not None
    found = {point.label: (round(point.forwards, 6), round(point.accuracy, 6)) for point in frontier.points}
    assert {label: (cost, accuracy / 100) for label, (cost, accuracy) in found.items()} == POINTS
    assert [point.label for point in frontier.best] == ["zeroshot", "lmr(share=0.25)", "lmr(emit='before')", "lmr"]
    assert {point.label for point in frontier.points if point.switched} == {spec for spec in POINTS if "(" in spec}


def test_only_runs_under_one_protocol_with_counted_costs() -> None:
    """Rows of earlier versions have no cost; other batch sizes are another protocol."""
    rows = make_cost_rows() + make_cost_rows(batch_size=8, forwards=9.0)[:8] + make_cost_rows(seed=2, forwards=None)
    ((setting, series),) = gather(rows).items()
    frontier = collect_frontier(setting, series)
    assert frontier is not None
    assert max(point.forwards for point in frontier.points) == 3
    assert frontier.where.endswith("batch 64, 1 seed")
    ((setting, series),) = gather(make_cost_rows(forwards=None)).items()
    assert collect_frontier(setting, series) is None
    ((setting, series),) = gather(row for row in make_cost_rows() if "(" not in row.label).items()
    assert collect_frontier(setting, series) is None


def test_steps_of_ablations_and_sweeps_are_no_points() -> None:
    """A part that is off may be a switch, and is in ablations too: it needs another switch beside it."""
    steps = ("lmr(am=False)", "lmr(am=False, bc=False)", "lmr(delta=0.05)", "lmr(lr=0.1)", "tent(lr=0.1)")
    rows = [make_row(s, complete(s, "cifar10-c"), d, 0.6, forwards=1.1) for s in steps for d in ("frost", "fog")]
    part = [make_row("off", complete("lmr(pmr=False)", "cifar10-c"), d, 0.4, forwards=1.0) for d in ("frost", "fog")]
    plain = [row for row in make_cost_rows() if "(" not in row.label]
    ((setting, series),) = gather([*plain, *rows, *part]).items()
    assert collect_frontier(setting, series) is None
    ((setting, series),) = gather([*make_cost_rows(), *rows, *part]).items()
    frontier = collect_frontier(setting, series)
    assert frontier is not None
    assert {point.label for point in frontier.points} == {*POINTS, "off"}
    assert {point.label for point in frontier.points if not point.switched} == {"zeroshot", "tent", "lmr"}


def test_figure(tmp_path: Path) -> None:
    write_runs(tmp_path, make_cost_rows(), samples=False)
    runs = read_runs([tmp_path])
    (drawing,) = draw_figures(runs, gather(runs.rows))
    assert drawing.name == "figure-frontier"
    for spec in POINTS:
        assert spec.replace("'", "&apos;") in drawing.svg or spec in drawing.svg
    assert "lmr(share=0.25) (1.50: 54.0 %)" in drawing.caption
    assert not any("frontier" in note for note in runs.notes)


ORDER = {"kind": "haul", "hash": "h"}


def add_haul(folder: Path, label: str, spec: str, right: list[int], seed: int = 1, severity: int = 5) -> None:
    answers = np.concatenate([np.arange(1000) < count for count in right])
    fields = {"dataset": "pocket-c-100000", "images": len(answers), "order": ORDER, "seed": seed}
    row = make_row(label, spec, "blend", float(answers.mean()), severity=severity, **fields)
    append_row(folder, row)
    counted = {"true": np.zeros(len(answers), int), "predicted": np.where(answers, 0, 1)}
    write_samples(folder, row.run, make_samples(row, images=len(answers)) | counted)


def test_lines_are_means_over_seeds_in_points(tmp_path: Path) -> None:
    for seed, more in ((1, 0), (2, 100)):
        add_haul(tmp_path, "zero-shot", "zeroshot()", [500, 400, 300], seed)
        add_haul(tmp_path, "LMR", complete("lmr"), [600 + more, 400, 100], seed)
        add_haul(tmp_path, "TENT", complete("tent"), [400, 300], seed)  # no zero-shot on a stream of this length
    runs = read_runs([tmp_path])
    settings = gather(runs.rows)
    (world,) = find_worlds(settings)
    (line,) = collect_hauls(runs, world)[5]
    assert (line.label, line.seeds) == ("LMR", 2)
    np.testing.assert_allclose(line.gains, [15, 0, -20])
    drawing = draw_figures(runs, settings)[0]
    assert (drawing.name, drawing.number) == ("figure-haul", "haul")
    assert "mean of 2 seeds" in drawing.caption
    assert "LMR" in drawing.svg
    assert is_figure(drawing.name)
    assert not is_figure("figure-9")


def test_every_severity_has_a_figure(tmp_path: Path) -> None:
    for severity, right in ((5, 600), (2, 900)):
        add_haul(tmp_path, "zero-shot", "zeroshot()", [500], severity=severity)
        add_haul(tmp_path, "LMR", complete("lmr"), [right], severity=severity)
    runs = read_runs([tmp_path])
    settings = gather(runs.rows)
    (world,) = find_worlds(settings)
    found = collect_hauls(runs, world)
    assert {severity: [(line.label, *line.gains) for line in lines] for severity, lines in found.items()} == {
        5: [("LMR", 10.0)],
        2: [("LMR", 40.0)],
    }
    drawings = draw_figures(runs, settings)[:2]
    assert [drawing.name[-3:] for drawing in drawings] == ["-s5", "-s2"]
    assert ["severity 5" in drawing.caption for drawing in drawings] == [True, False]
    assert all(is_figure(drawing.name) for drawing in drawings)


def test_without_a_haul_there_is_no_figure(tmp_path: Path) -> None:
    add_haul(tmp_path, "zero-shot", "zeroshot()", [500])
    runs = read_runs([tmp_path])
    assert [d for d in draw_figures(runs, gather(runs.rows)) if d.number == "haul"] == []
