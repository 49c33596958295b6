from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import lmr.report
from lmr.core.registry import find_method, load_method_file
from lmr.report.report import make_report
from lmr.report.traits import LineKind, kind_of, label_of, place_of
from row_maker import complete, make_row, write_runs

ROOT = Path(lmr.report.__file__).parent
MINE = """
from lmr.core.card import Card
from lmr.core.method import Method
from lmr.core.registry import register

CARD = Card(label="Mine!", year=2022, parts=("left", "right"), swept={"width": ("width", "shape")})

@register("report_test_method", CARD)
class Mine(Method):
    left: bool = True
    right: bool = True
    width: float = 0.5
    shape: str = "round"
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a method in a file outside the package."""
    path = tmp_path_factory.mktemp("methods") / "mine.py"
    path.write_text(MINE)
    load_method_file(str(path))
    yield "report_test_method"
    path.write_text("")
    load_method_file(str(path))  # an empty file takes the method out again


def test_a_row_is_what_its_method_declares(mine: str) -> None:
    kinds = {
        "zeroshot()": LineKind.BASELINE,
        complete("lmr", "imagenet"): LineKind.OURS,
        complete("lmr(lr=0.1)"): LineKind.OTHER,
        complete("lmr(am=False)"): LineKind.PART,
        complete("lmr(delta=0.1)"): LineKind.STEP,
        complete("lmr(am=False, delta=0.1)"): LineKind.OTHER,
        complete("tent"): LineKind.OTHER,
        complete(mine): LineKind.OTHER,
        complete(f"{mine}(left=False)"): LineKind.PART,
        complete(f"{mine}(width=2.0)"): LineKind.STEP,
        "never_heard_of(am=False)": LineKind.OTHER,
    }
    assert {spec: kind_of(make_row("x", spec, "fog", 0.5)) for spec in kinds} == kinds


def test_a_method_that_is_not_loaded_is_any_other_method() -> None:
    row = make_row("x", "never_heard_of(a=1)", "fog", 0.5)
    assert label_of(row) == "NEVER_HEARD_OF"
    places = [place_of(make_row("x", complete(name), "fog", 0.5)) for name in ("zeroshot", "tent", "bitta")]
    assert [*places, place_of(row), place_of(make_row("x", complete("lmr"), "fog", 0.5))] == sorted(
        [*places, place_of(row), place_of(make_row("x", complete("lmr"), "fog", 0.5))]
    )


def test_a_method_of_a_users_file_has_every_table(tmp_path: Path, mine: str) -> None:
    """Its parts and its sweep are reported as ours are, without an edit anywhere."""
    specs = ["zeroshot", "lmr", mine, f"{mine}(left=False)", f"{mine}(right=False)"]
    specs += [f"{mine}(width={width}, shape={shape!r})" for width in (1.0, 2.0) for shape in ("round", "flat")]
    labels = {name: find_method(name).card.label for name in ("zeroshot", "lmr", mine)}
    rows = [make_row(labels.get(s, s), complete(s), d, 0.5, dataset="photo-c") for s in specs for d in ("fog", "frost")]
    report = make_report([write_runs(tmp_path / "runs", rows)], tmp_path / "out", figures=False)
    titles = {table.name: table.title.partition(":")[0] for table in report.tables}
    tail = "photo-c-openai-clip-vit-base-patch16-s5"
    assert "The parts of Mine!" in " ".join(titles.values())
    assert titles[f"sweep-width-{tail}"] == "Accuracy (%) against the width of Mine!"
    tables = {table.name: [line.label for line in table.lines] for table in report.tables}
    assert tables[f"accuracy-{tail}"] == ["zero-shot", "Mine!", "LMR"]
    assert tables[f"gains-{tail}"] == ["LMR − zero-shot", "LMR − Mine!"]
    assert tables[f"sweep-width-{tail}"] == ["round", "flat"]


def test_rows_of_a_file_that_is_not_here_are_reported(tmp_path: Path) -> None:
    gone = dataclasses.replace(make_row("theirs", "theirs(lr=1.0)", "fog", 0.6), spec="./gone/theirs.py:theirs(lr=1.0)")
    rows = [make_row("zero-shot", "zeroshot()", "fog", 0.5), gone]
    report = make_report([write_runs(tmp_path / "runs", rows)], tmp_path / "out", figures=False)
    assert [line.label for line in report.tables[0].lines] == ["zero-shot", "theirs"]
