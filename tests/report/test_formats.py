from __future__ import annotations

import csv
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lmr.cli import main
from lmr.report.formats import (
    escape_latex,
    format_csv,
    format_latex,
    format_markdown,
    format_terminal,
    spell,
)
from lmr.report.published import PublishedTable
from lmr.report.table import Cell, Column, Line, Table, TableKind, make_cell, show_number
from lmr.report.traits import LineKind
from row_maker import make_row, make_world, write_runs

ODD = "x_1 & 50% #{a}$ \\b ~^ <b>|*`[δ]\x1b[31m"
KIND = TableKind.ACCURACY
TABLE = Table(
    KIND,
    "small",
    "A small table",
    (Column("frost", "Fros."), Column("fog", "Fog"), Column("average", "AVG"), Column("ms", "ms", 1, False)),
    (
        Line("zero-shot", (Cell(10.0, published=11.5), Cell(20.0), Cell(15.0), Cell(2.0))),
        Line("TENT", (Cell(12.346, 0.5, 3), Cell(None), Cell(None), Cell(4.0)), ("severity 3 (paper: 5)",)),
        Line("LMR", (Cell(12.351), Cell(30.0), Cell(21.1725), Cell(4.04)), kind=LineKind.OURS),
    ),
    published=PublishedTable("small", "tab:x", "X", {}, (), ()),
    notes=("One note.",),
)


def test_terminal_text_is_exact() -> None:
    assert format_terminal(TABLE) == (
        "A small table\n"
        "\n"
        "method        Fros.     Fog     AVG    ms\n"
        "------------------------------------------\n"
        "zero-shot     10.00   20.00+  15.00+  2.0*\n"
        "  published   11.50       –       –     –\n"
        "  difference  -1.50       –       –     –\n"
        "TENT          12.35*      –       –   4.0+\n"
        "  ± sd         0.50       –       –     –\n"
        "LMR           12.35*  30.00*  21.17*  4.0+\n"
        "\n"
        "* best, + second.\n"
        "Published: the paper's table tab:x (X).\n"
        "TENT differs from the paper: severity 3 (paper: 5).\n"
        "One note.\n"
    )


def test_a_terminal_without_the_characters_gets_aligned_ascii() -> None:
    lines = format_terminal(TABLE, encoding="ascii").splitlines()
    assert lines[5] == "  published   11.50       -       -     -"
    assert lines[8] == "  +- sd        0.50       -       -     -"
    assert format_terminal(make_odd(), encoding="ascii").isascii()
    assert "caf\\xe9" in format_terminal(replace(TABLE, title="caf\xe9"), encoding="ascii")
    assert "café" in format_terminal(replace(TABLE, title="café"), encoding="latin-1")


def test_terminal_codes_mark_best_and_second_and_keep_the_columns() -> None:
    styled = format_terminal(TABLE, style=True)
    assert "\x1b[1m30.00\x1b[0m" in styled
    assert "\x1b[4m20.00\x1b[0m" in styled
    plain = re.sub(r"\x1b\[\d+m", "", styled).splitlines()[2:]
    ends = {len(line) for line in plain if line.startswith(("zero-shot ", "TENT  ", "LMR "))}
    assert len(ends) == 1


def test_markdown_is_exact() -> None:
    assert format_markdown(TABLE) == (
        "### A small table\n"
        "\n"
        "| method | Fros. | Fog | AVG | ms |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| zero-shot | 10.00 | <u>20.00</u> | <u>15.00</u> | **2.0** |\n"
        "| *published* | 11.50 | – | – | – |\n"
        "| *difference* | -1.50 | – | – | – |\n"
        "| TENT | **12.35** | – | – | <u>4.0</u> |\n"
        "| *± sd* | 0.50 | – | – | – |\n"
        "| LMR | **12.35** | **30.00** | **21.17** | <u>4.0</u> |\n"
        "\n"
        "- Published: the paper's table tab:x (X).\n"
        "- TENT differs from the paper: severity 3 (paper: 5).\n"
        "- One note.\n"
    )


def test_latex_is_exact_where_it_matters() -> None:
    text = format_latex(TABLE)
    assert r"zero-shot & 10.00 & \underline{20.00} & \underline{15.00} & \textbf{2.0} \\" in text
    assert r"\quad\textit{difference} & -1.50 & -- & -- & -- \\" in text
    assert r"\midrule" + "\n" + r"\textbf{LMR} & \textbf{12.35} & \textbf{30.00}" in text
    assert r"\begin{tabular}{lcccc}" in text
    assert text.startswith("% Published: the paper's table tab:x (X).\n% TENT differs")


def make_odd() -> Table:
    cells = (Cell(1.0), Cell(2.0), Cell(3.0), Cell(4.0))
    lines = (Line(ODD, cells, (ODD + "\nsecond line",)),)
    return Table(KIND, ODD, ODD, TABLE.columns, lines, ODD, PublishedTable(ODD, ODD, ODD, {}, (), ()), (ODD,))


@pytest.mark.parametrize("table", [TABLE, make_odd()], ids=["plain", "odd"])
def test_latex_is_balanced(table: Table) -> None:
    text = format_latex(table)
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert not re.search(r"(?<!\\)[%#$_~^]", re.sub(r"\$[^$]*\$", "", code.replace(r"\_", "").replace(r"\#", "")
        .replace(r"\$", "").replace(r"\%", "")))  # fmt: skip
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", code):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    begun, ended = re.findall(r"\\begin\{(\w+\*?)\}", code), re.findall(r"\\end\{(\w+\*?)\}", code)
    assert begun == ended[::-1] == ["table*", "tabular"]
    body = code.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\&", "")
    rows = [row for row in body.split(r"\\") if row.strip()]
    assert {row.count("&") for row in rows} == {4}


def test_the_papers_layout_has_a_bar_before_the_average() -> None:
    table = Table(KIND, "t", "t", TABLE.columns[:3], (Line("LMR", TABLE.lines[0].cells[:3]),))
    assert r"\begin{tabular}{l|cc|c}" in format_latex(table)


def test_latex_leaves_no_special_sign() -> None:
    assert escape_latex("a_b & 5% {x} \\") == r"a\_b \& 5\% \{x\} \textbackslash{}"


@pytest.mark.parametrize("table", [TABLE, make_odd()], ids=["plain", "odd"])
def test_csv_reads_back(table: Table) -> None:
    head, *rows = list(csv.reader(io.StringIO(format_csv(table))))
    assert head == [table.corner, "kind", "frost", "fog", "average", "ms", "batch size", "images", "seeds", "differs"]
    assert {len(row) for row in rows} == {len(head)}
    for line in table.lines:
        found = {row[1]: row for row in rows if row[0] == line.label}
        values = [float(value) if value else None for value in found["measured"][2:6]]
        assert values == [cell.value for cell in line.cells]
        assert found["measured"][-1] == "; ".join(line.differs)
        assert ("published" in found) == line.has_published
    if table is TABLE:
        assert [row[:3] for row in rows if row[1] != "measured"] == [
            ["zero-shot", "published", "11.5"],
            ["zero-shot", "difference", "-1.5"],
            ["TENT", "sd", "0.5"],
        ]


def test_csv_has_what_others_have_in_notes() -> None:
    line = Line("LMR", (Cell(1.0, seeds=2),), protocol=(("method", "lmr"), ("batch size", "16"), ("images", "600")))
    rows = list(csv.DictReader(io.StringIO(format_csv(Table(KIND, "t", "t", (Column("c", "c"),), (line,))))))
    assert (rows[0]["batch size"], rows[0]["images"], rows[0]["seeds"]) == ("16", "600", "2")


def test_names_cannot_leave_their_cell() -> None:
    odd = make_odd()
    assert "\x1b" not in format_terminal(odd)
    markdown = format_markdown(odd)
    cell = next(line for line in markdown.splitlines() if " 1.00 " in line)
    assert len(re.findall(r"(?<!\\)\|", cell)) == 6
    assert "<b>" not in markdown


def test_what_differs_in_all_lines_is_said_once() -> None:
    lines = [Line(name, (Cell(1.0, published=2.0),), differs) for name, differs in (("a", ("x", "y")), ("b", ("x",)))]
    table = Table(KIND, "t", "t", (Column("c", "c"),), (*lines, Line("mine", (Cell(1.0),))))
    assert table.list_notes() == ["All lines differ from the paper: x.", "a differs from the paper: y."]
    assert Table(KIND, "t", "t", table.columns, (lines[1],)).list_notes() == ["b differs from the paper: x."]


def test_equal_numbers_share_a_place() -> None:
    def rank(values: list[float | None], higher: bool | None = True) -> list[int]:
        lines = tuple(Line(str(k), (Cell(value),)) for k, value in enumerate(values))
        return [row[0] for row in Table(KIND, "t", "t", (Column("c", "c", 2, higher),), lines).rank()]

    assert rank([1.0, 3.0, 2.0]) == [0, 1, 2]
    assert rank([1.0, 3.0, 2.0], higher=False) == [1, 0, 2]
    assert rank([1.0, 3.0, 2.0], higher=None) == [0, 0, 0]
    assert rank([3.001, 3.004, 2.0]) == [1, 1, 0]
    assert rank([3.0, 2.0, 2.0]) == [1, 2, 2]
    assert rank([None, 3.0, None]) == [0, 0, 0]
    assert rank([None, 3.0, 1.0]) == [0, 1, 2]
    assert rank([5.0]) == [0]


def test_cells_of_seeds() -> None:
    assert make_cell(pd.Series(dtype=float), published=3.0) == Cell(published=3.0)
    assert make_cell(pd.Series({1: 5.0})) == Cell(5.0, None, 1)
    cell = make_cell(pd.Series({1: 5.0, 2: 7.0}), ("a", "b"), 5.5)
    assert (cell.value, cell.sd, cell.seeds, cell.difference) == (6.0, pytest.approx(2**0.5), 2, 0.5)


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (1.005, False, "1.00"),
        (-0.001, True, "+0.00"),
        (-0.001, False, "0.00"),
        (None, False, "–"),
        (float("nan"), True, "–"),
        (2.0, True, "+2.00"),
        (-2.0, True, "-2.00"),
    ],
)
def test_numbers_are_shown_with_their_digits(value: float | None, sign: bool, text: str) -> None:
    assert show_number(value, 2, sign) == text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "utf-8"])
def test_spelled_text_can_be_shown(encoding: str) -> None:
    text = spell("LMR − TENT ± 1 – 2 × 3 … a → b, δ ≤ 4, café, 図", encoding)
    text.encode(encoding)
    assert ("−" in text) == (encoding == "utf-8")
    assert text.startswith("LMR ")


def test_an_unknown_encoding_gets_ascii() -> None:
    assert spell("LMR − TENT …", None) == "LMR - TENT ..."
    assert spell("plain", None) == "plain"


def test_a_report_can_be_read_on_an_ascii_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minus of differences, the dash of missing numbers, arrows, δ, and names in any script."""
    rows = [row for row in make_world() if row.domain in ("frost", "fog")]
    rows.append(make_row("図", "zeroshot()", "frost", 0.5, dataset="naïve"))
    for domains in ({"frost": 0.4, "fog": 0.5}, {"fog": 0.4, "frost": 0.5}):
        rows.append(make_row("zero-shot", "zeroshot()", "continual", 0.5, reset="never", domains=domains))
    runs = write_runs(tmp_path / "runs", rows)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert main(["report", str(runs), "--no-figures"]) == 0
    terminal.seek(0)
    shown = terminal.read()
    assert "LMR - TENT " in shown
    assert "delta" in shown
    assert "frost -> fog" in shown
    table = (runs / "report" / "tables" / "gains-pocket-c-openai-clip-vit-base-patch16-s5.txt").read_text("utf-8")
    assert "LMR − TENT" in table
