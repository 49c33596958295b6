"""The figures: what is drawn against numbers counted by hand, and whether it is fit for print."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from lmr.bench.running.row import Row, append_row, write_samples
from lmr.report import figures
from lmr.report.drawing import DPI, SIZE, Drawing
from lmr.report.figures import draw_figures
from lmr.report.groups import gather
from lmr.report.runs import read_runs
from row_maker import complete, make_row, make_samples, make_world, write_runs

NUMBERS = ["1a", "1b", "1c", "1d", "3a", "3b", "3c", "3d"]
FIELDS: dict[str, Any] = {"dataset": "photo-c", "images": 6}
Lines = list[tuple[NDArray[Any], NDArray[Any]]]


def add(folder: Path, row: Row, **arrays: Any) -> None:
    """A row with samples of six pictures, some of them given."""
    samples = make_samples(row, classes=4, images=6) | {key: np.array(value) for key, value in arrays.items()}
    append_row(folder, row)
    write_samples(folder, row.run, samples)


def draw(folder: Path, number: str) -> tuple[str, Axes]:
    """A panel of the paper: its caption, empty if it cannot be drawn."""
    runs = read_runs([folder])
    axes = Figure().add_subplot()
    return figures.PANELS[number](axes, figures.Family(runs, gather(runs.rows))), axes


def read_lines(axes: Axes) -> Lines:
    return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in axes.lines]


def read_names(axes: Axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


def test_gaps_are_those_of_errors_on_the_shift(tmp_path: Path) -> None:
    arrays = {"true": [0, 1, 2, 3, 0, 1], "predicted": [0, 2, 2, 0, 1, 0], "gap": [0, 0.04, 0, 0.01, np.nan, 0.02]}
    add(tmp_path, make_row("zero-shot", "zeroshot()", "fog", 0.5, **FIELDS))
    add(tmp_path, make_row("zero-shot", "zeroshot()", "snow", 0.5, **FIELDS | {"images": 9}))  # a single longer run
    add(tmp_path, make_row("zero-shot", "zeroshot()", "frost", 0.5, **FIELDS), **arrays)
    add(tmp_path, make_row("LMR", complete("lmr"), "frost", 0.5, **FIELDS))
    caption, axes = draw(tmp_path, "1a")
    assert caption.endswith("severity 5, frost, 6 images, seed 1.")
    np.testing.assert_allclose(read_lines(axes)[0], [[0.01, 0.02, 0.04], [100 / 3, 200 / 3, 100]])
    assert read_names(axes) == {"66.7 % within δ = 0.03"}


def test_margins_are_medians_by_severity(tmp_path: Path) -> None:
    for severity in (1, 3, 5):
        for domain, factor in (("frost", 1.0), ("fog", 2.0), ("contrast", np.nan)):
            margin = [factor / severity, np.nan, 0 * factor, 9 * factor, factor / severity, factor / severity]
            row = make_row("zero-shot", "zeroshot()", domain, 0.5, severity=severity, **FIELDS)
            add(tmp_path, row, margin=margin)
    add(tmp_path, make_row("zero-shot", "zeroshot()", "snow", 0.5, severity=5, **FIELDS))
    lines = read_lines(draw(tmp_path, "1b")[1])
    assert [dict(zip(*line, strict=True)) for line in lines] == [
        {1: 1.0, 3: 1 / 3, 5: 0.2},
        {1: 2.0, 3: 2 / 3, 5: 0.4},
    ]


def test_mass_accumulates_from_the_largest_class(tmp_path: Path) -> None:
    np.testing.assert_allclose(figures.accumulate_classes(np.array([3, 3, 1, 3, 0]), 5), [0.6, 0.8, 1, 1, 1])
    shifted = make_row("zero-shot", "zeroshot()", "frost", 0.5, **FIELDS)
    add(tmp_path, shifted, true=[0, 0, 1, 1, 2, 3], predicted=[1, 1, 1, 1, 1, 2])
    assert draw(tmp_path, "1c")[0] == ""  # clean pictures are missing
    clean = make_row("zero-shot", "zeroshot()", "clean", 0.5, **FIELDS)
    add(tmp_path, clean, true=[0, 0, 1, 1, 2, 3], predicted=[0, 1, 1, 1, 2, 3])
    shares = [y / 100 for _, y in read_lines(draw(tmp_path, "1c")[1])[:3]]
    np.testing.assert_allclose(shares, [[5 / 6, 1, 1, 1], [3 / 6, 4 / 6, 5 / 6, 1], [2 / 6, 4 / 6, 5 / 6, 1]])


def test_late_shares_are_of_pmr_without_and_with_am_in_runs_alike(tmp_path: Path) -> None:
    parts = {"lmr(am=False, bc=False)": 0.4, "lmr(bc=False)": 0.1, "lmr(am=False)": 0.9, "lmr": 0.8}
    for spec, share in list(parts.items())[1:]:
        add(tmp_path, make_row("x", complete(spec), "frost", 0.5, late_top_share=share, **FIELDS))
    both = complete("lmr(am=False, bc=False)")
    add(tmp_path, make_row("x", both, "frost", 0.5, late_top_share=0.3, **FIELDS | {"images": 60}))
    assert draw(tmp_path, "1d")[0] == ""
    add(tmp_path, make_row("x", both, "frost", 0.5, late_top_share=0.4, **FIELDS))
    caption, axes = draw(tmp_path, "1d")
    assert caption.endswith("severity 5, frost, 6 images, seed 1.")
    assert [bar.get_height() for bar in axes.patches] == [40, 10]  # type: ignore[attr-defined]


def test_recovery_is_over_zero_shots_errors_on_common_domains(tmp_path: Path) -> None:
    nan = np.nan
    add(tmp_path, make_row("TENT", complete("tent"), "frost", 0.5, **FIELDS), recovery=[nan, nan, -1, -1, -1, -1])
    add(tmp_path, make_row("TENT", complete("tent"), "fog", 0.5, **FIELDS), recovery=[7.0] * 6)
    assert draw(tmp_path, "3d")[0] == ""  # nothing to compare with
    add(tmp_path, make_row("LMR", complete("lmr"), "frost", 0.5, **FIELDS), recovery=[nan, nan, 0, 1, 2, 3])
    later = make_row("LMR", complete("lmr"), "frost", 0.5, finished="2027-01-01", **FIELDS)
    add(tmp_path, later, recovery=[nan] * 6)  # the main plan and the one about recovery both have such a run
    add(tmp_path, make_row("TDA", complete("tda"), "frost", 0.5, **FIELDS), recovery=[nan] * 6)  # not measured
    add(tmp_path, make_row("fast", complete("lmr(lr=0.5)"), "frost", 0.5, **FIELDS), recovery=[9.0] * 6)
    add(tmp_path, make_row("ETA", complete("eta"), "frost", 0.5, **FIELDS | {"images": 60}), recovery=[9.0] * 6)
    caption, axes = draw(tmp_path, "3d")
    assert "severity 5, frost" in caption
    assert read_names(axes) == {"TENT", "LMR"}
    lines = sorted((y for _, y in read_lines(axes)[:2]), key=lambda y: float(y[49]))
    np.testing.assert_allclose(lines[0], -1)
    assert lines[1][49] == pytest.approx(1.5)  # the median


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs"), make_world())


@pytest.fixture(scope="module")
def drawings(folder: Path) -> dict[str, Drawing]:
    runs = read_runs([folder])
    found = draw_figures(runs, gather(runs.rows))
    assert runs.notes == []
    assert [drawing.number for drawing in found] == NUMBERS
    return {drawing.number: drawing for drawing in found}


def read_texts(drawing: Drawing) -> list[str]:
    return [node.text or "" for node in xml.fromstring(drawing.svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("number", NUMBERS)
def test_figures_are_fit_for_print(drawings: dict[str, Drawing], number: str) -> None:
    """A column wide at 300 dots per inch, in letters of at least seven points, text as text."""
    drawing = drawings[number]
    with Image.open(io.BytesIO(drawing.png)) as picture:
        assert picture.size == (round(SIZE[0] * DPI), round(SIZE[1] * DPI))
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", drawing.svg)]
    assert sizes
    assert min(sizes) >= 7
    assert "photo-c, openai/clip-vit-base-patch16" in drawing.caption


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("1b", ["gaussian noise", "frost", "fog", "contrast"]),
        ("1c", ["shifted predictions", "clean predictions", "labels"]),
        ("1d", ["PMR only", "PMR + AM", "25.0 %", "20.0 %"]),
        ("3a", ["MINT", "BATCLIP", "LMR", "64"]),
        ("3b", ["by gap", "top class only", "20"]),
        ("3c", ["photo-c", "δ = 0.03"]),
        ("3d", ["TENT", "MINT", "LMR"]),
    ],
)
def test_lines_are_named_in_the_figure(drawings: dict[str, Drawing], number: str, words: list[str]) -> None:
    texts = [text.strip() for text in read_texts(drawings[number])]
    for word in words:
        assert word in texts


def test_without_numbers_there_are_no_figures(tmp_path: Path) -> None:
    write_runs(tmp_path / "one", [make_row("LMR", complete("lmr"), "frost", 0.5)])
    write_runs(tmp_path / "rows", make_world(), samples=False)
    one, rows = (read_runs([tmp_path / name]) for name in ("one", "rows"))
    assert draw_figures(one, gather(one.rows)) == []
    numbers = [drawing.number for drawing in draw_figures(rows, gather(rows.rows))]
    assert numbers == ["1d", "3a", "3b", "3c"]
    assert len(rows.notes) == len(set(rows.notes)) > 0


def test_the_same_runs_give_the_same_files(drawings: dict[str, Drawing], tmp_path: Path) -> None:
    write_runs(tmp_path, [row for row in make_world() if row.method == "zeroshot" and row.domain != "clean"])
    runs = read_runs([tmp_path])
    again = draw_figures(runs, gather(runs.rows))
    assert again == [drawings["1a"], drawings["1b"]]
    again[0].write(tmp_path / "new")
    assert (tmp_path / "new" / "figure-1a.png").read_bytes() == again[0].png
