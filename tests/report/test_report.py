from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
import pytest

import lmr
from lmr.bench.plans.plan import choose_plans
from lmr.bench.plans.task import list_tasks
from lmr.cli import main
from lmr.report import verdicts
from lmr.report.published import read_tables
from lmr.report.report import make_report
from row_maker import complete, make_row, make_task_rows, make_world, write_runs

ROWS = [row for row in make_world() if row.domain in ("frost", "fog", "clean")]


KINDS = ["accuracy", "gains", "measures", "efficiency", "ablation-components", "sweep-batch-size", "sweep-delta",
         "sweep-negatives"]  # fmt: skip


def test_a_report_has_every_table_in_every_format_and_the_page(tmp_path: Path) -> None:
    report = make_report([write_runs(tmp_path / "runs", ROWS)], tmp_path / "out", figures=False)
    kinds = [next(kind for kind in KINDS if table.name.startswith(kind)) for table in report.tables]
    assert list(dict.fromkeys(kinds)) == list(dict.fromkeys(KINDS))
    out = tmp_path / "out"
    assert {path.name for path in (out / "tables").iterdir()} == {f"{table.name}.tex" for table in report.tables}
    assert set(pd.read_csv(out / "tables.csv")["table"]) == {table.name for table in report.tables}
    page, text = report.page.read_text(), (out / "report.md").read_text()
    for table in report.tables:
        assert table.title in text
        assert f'id="{table.name}"' in page


def test_every_number_of_images_has_tables_of_its_own(tmp_path: Path) -> None:
    rows = [make_row("LMR", complete("lmr"), "frost", 0.5, images=images) for images in (5, 9)]
    report = make_report([write_runs(tmp_path / "runs", rows, samples=False)], tmp_path / "out", figures=False)
    accuracies = [table.title for table in report.tables if table.name.startswith("accuracy")]
    assert [title.rpartition(", ")[2] for title in accuracies] == ["9 images", "5 images"]


def test_the_command_prints_tables_and_says_where_things_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A half-written last line costs a word, not the report."""
    runs = write_runs(tmp_path / "runs", ROWS)
    with open(runs / "rows.jsonl", "a", encoding="utf-8") as file:
        file.write('{"run": "abc", "met')
    assert main(["report", str(runs)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^LMR +54.00\* +55.00\* +54.50\*$", shown, re.MULTILINE)
    assert "damaged and was left out" in shown
    assert str(runs / "report" / "index.html") in shown
    assert "\x1b" not in shown
    assert "damaged and was left out" in (runs / "report" / "index.html").read_text()


def test_the_page_on_reports_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python runs, and its tables and tolerances are those of the code."""
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    write_runs(tmp_path / "lmr-runs", ROWS[:4])
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, {})
    assert (tmp_path / "report" / "index.html").exists()
    listed = re.search(r"Tables: (.*?)\. The command", text, re.DOTALL)
    assert listed is not None
    assert re.findall(r"`(.*?)`", listed[1]) == list(read_tables())
    assert f"| {verdicts.MEAN} points | {verdicts.CELL} points |" in text
    assert f"| {verdicts.MEAN_ZERO_SHOT} | {verdicts.CELL_ZERO_SHOT} |" in text


def test_what_is_not_there_or_not_writable_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(lmr.LmrError, match="There are no runs"):
        make_report([tmp_path / "nowhere"], tmp_path / "out")
    runs = write_runs(tmp_path / "runs", ROWS[:2])
    (tmp_path / "file").write_text("")
    with pytest.raises(lmr.LmrError, match="Cannot create the folder"):
        make_report([runs], tmp_path / "file" / "out", figures=False)


def test_plans_on_photographs_give_every_table_and_figure(tmp_path: Path) -> None:
    plans = choose_plans(["photo-figures", "photo-quick"])
    runs = write_runs(tmp_path / "runs", make_task_rows(list_tasks(plans, str(tmp_path))))
    report = make_report([runs], tmp_path / "out")
    assert {table.name.split("-photo")[0] for table in report.tables} == set(KINDS)
    numbers = {drawing.number for drawing in report.drawings}
    assert numbers == {"1a", "1b", "1c", "1d", "3a", "3b", "3c", "3d"}
    assert all("photo-c, photo" in drawing.caption for drawing in report.drawings)
    text = (tmp_path / "out" / "report.md").read_text()
    for drawing in report.drawings:
        assert f"(figures/{drawing.name}.svg)" in text
        assert (tmp_path / "out" / "figures" / f"{drawing.name}.png").stat().st_size > 10000
    assert report.notes == []


def test_a_missing_package_names_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for command in (["report", str(tmp_path)], ["reproduce", "cifar10-c"]):
        assert main(command) == 2
        assert "A report needs pandas; install it with: pip install 'lmr[bench]'" in capsys.readouterr().err
