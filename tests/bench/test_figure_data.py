from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmr.bench import figure_data as data
from lmr.bench.gather import Runs, gather, read_runs
from lmr.bench.row import Row, append_row, write_samples

from .row_maker import complete, make_row, make_samples

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
    domain, gaps = found
    assert domain == "frost"
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
    assert found == {"frost": {1: 1.0, 3: 1 / 3, 5: 0.2}, "fog": {1: 2.0, 3: 2 / 3, 5: 0.4}}


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
    domain, mass = found
    assert domain == "frost"
    np.testing.assert_allclose(mass["shifted predictions"], [5 / 6, 1, 1, 1])
    np.testing.assert_allclose(mass["clean predictions"], [3 / 6, 4 / 6, 5 / 6, 1])
    np.testing.assert_allclose(mass["labels"], [2 / 6, 4 / 6, 5 / 6, 1])


def test_late_shares_are_of_pmr_without_and_with_am(tmp_path: Path) -> None:
    parts = {"lmr(am=False, bc=False)": 0.4, "lmr(bc=False)": 0.1, "lmr(am=False)": 0.9, "lmr": 0.8}
    for spec, share in list(parts.items())[1:]:
        add(tmp_path, make_row("x", complete(spec), "frost", 0.5, late_top_share=share, **FIELDS))
    assert data.collect_late_shares(read(tmp_path)[1]) is None
    add(tmp_path, make_row("x", complete("lmr(am=False, bc=False)"), "frost", 0.5, late_top_share=0.4, **FIELDS))
    assert data.collect_late_shares(read(tmp_path)[1]) == ("frost", {"PMR only": 40.0, "PMR + AM": 10.0})


def test_recovery_is_over_zero_shots_errors_on_common_domains(tmp_path: Path) -> None:
    nan = np.nan
    add(tmp_path, make_row("TENT", complete("tent"), "frost", 0.5, **FIELDS), recovery=[nan, nan, -1, -1, -1, -1])
    add(tmp_path, make_row("TENT", complete("tent"), "fog", 0.5, **FIELDS), recovery=[7.0] * 6)
    assert data.collect_recovery(*read(tmp_path)) is None  # nothing to compare with
    add(tmp_path, make_row("LMR", complete("lmr"), "frost", 0.5, **FIELDS), recovery=[nan, nan, 0, 1, 2, 3])
    add(tmp_path, make_row("ETA", complete("eta"), "frost", 0.5, **FIELDS), recovery=[9.0] * 6)
    found = data.collect_recovery(*read(tmp_path))
    assert found is not None
    domains, lines = found
    assert domains == ["frost"]
    assert set(lines) == {"TENT", "LMR"}
    np.testing.assert_allclose(lines["TENT"], -1)
    assert lines["LMR"][49] == pytest.approx(1.5)  # the median


def test_a_run_without_recovery_does_not_hide_one_with_it(tmp_path: Path) -> None:
    """The main plan and the one about recovery both have such a run."""
    for name in ("tent", "lmr"):
        add(tmp_path, make_row(name, complete(name), "frost", 0.5, **FIELDS), recovery=[1.0] * 6)
        later = make_row(name, complete(name), "frost", 0.5, finished="2027-01-01", **FIELDS)
        add(tmp_path, later, recovery=[np.nan] * 6)
    assert data.collect_recovery(*read(tmp_path)) is not None
