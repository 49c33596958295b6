from __future__ import annotations

import io
import re

import pandas as pd
import pytest

from lmr.report.formats import (
    format_csv,
    format_latex,
    format_markdown,
    format_terminal,
    print_text,
    show_tables,
)
from lmr.report.published import PublishedTable
from lmr.report.table import Cell, Column, Line, Table, pivot
from lmr.report.traits import LineKind

ODD = "x_1 & 50% #{a}$ \\b ~^ <b>|*`[δ]\x1b[31m"
TABLE = Table(
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


def test_terminal_text_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
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
        "* best, + second.\n" + "".join(f"{note}\n" for note in TABLE.list_notes())
    )
    show_tables([make_odd()])
    assert "\x1b" not in capsys.readouterr().out


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
        "- Unlike the paper, TENT: severity 3 (paper: 5).\n"
        "- One note.\n"
    )


def test_latex_is_exact_where_it_matters() -> None:
    text = format_latex(TABLE)
    assert r"zero-shot & 10.00 & \underline{20.00} & \underline{15.00} & \textbf{2.0} \\" in text
    assert r"\quad\textit{difference} & -1.50 & -- & -- & -- \\" in text
    assert r"\midrule" + "\n" + r"\textbf{LMR} & \textbf{12.35} & \textbf{30.00}" in text
    assert r"\begin{tabular}{lcccc}" in text
    assert text.startswith("% Published: the paper's table tab:x (X).\n% Unlike")


def make_odd() -> Table:
    cells = (Cell(1.0), Cell(2.0), Cell(3.0), Cell(4.0))
    lines = (Line(ODD, cells, (ODD + "\nsecond line",)),)
    return Table(ODD, ODD, TABLE.columns, lines, ODD, PublishedTable(ODD, ODD, ODD, {}, (), ()), (ODD,))


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


def test_names_cannot_leave_their_cell() -> None:
    odd = make_odd()
    markdown = format_markdown(odd)
    cell = next(line for line in markdown.splitlines() if " 1.00 " in line)
    assert len(re.findall(r"(?<!\\)\|", cell)) == 6
    assert "<b>" not in markdown


def test_what_differs_in_all_lines_is_said_once() -> None:
    lines = [Line(name, (Cell(1.0, published=2.0),), differs) for name, differs in (("a", ("x", "y")), ("b", ("x",)))]
    table = Table("t", "t", (Column("c", "c"),), (*lines, Line("mine", (Cell(1.0),))))
    assert table.list_notes() == ["Unlike the paper, all lines: x.", "Unlike the paper, a: y."]
    assert Table("t", "t", table.columns, (lines[1],)).list_notes() == ["Unlike the paper, all lines: x."]


def test_equal_numbers_share_a_place() -> None:
    def rank(values: list[float | None], higher: bool | None = True) -> list[int]:
        lines = tuple(Line(str(k), (Cell(value),)) for k, value in enumerate(values))
        return [row[0] for row in Table("t", "t", (Column("c", "c", 2, higher),), lines).rank()]

    assert rank([1.0, 3.0, 2.0], higher=False) == [1, 0, 2]
    assert rank([1.0, 3.0, 2.0], higher=None) == [0, 0, 0]
    assert rank([3.001, 3.004, 2.0]) == [1, 1, 0]
    assert rank([3.0, 2.0, 2.0]) == [1, 2, 2]
    assert rank([None, 3.0, 1.0]) == [0, 1, 2]
    assert rank([5.0]) == [0]


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (-0.001, True, "+0.00"),
        (-0.001, False, "0.00"),
        (None, False, "–"),
        (float("nan"), True, "–"),
        (-2.0, True, "-2.00"),
    ],
)
def test_numbers_are_shown_with_their_digits(value: float | None, sign: bool, text: str) -> None:
    assert Column("c", "c", 2).show(value, sign) == text


def test_csv_has_a_line_for_every_number() -> None:
    frame = pd.read_csv(io.StringIO(format_csv([TABLE, make_odd()])))
    small = frame[frame["table"] == "small"].set_index(["line", "column"])
    assert len(small) == 10  # without the cells that have no number
    assert small.loc[("TENT", "frost"), ["value", "sd", "seeds"]].tolist() == [12.346, 0.5, 3]
    assert small.loc[("zero-shot", "frost"), "published"] == 11.5
    assert set(small["differs"].dropna()) == {"severity 3 (paper: 5)"}
    assert set(frame["line"]) == {"zero-shot", "TENT", "LMR", ODD}


def test_cells_are_means_over_streams_and_then_over_seeds() -> None:
    entries = pd.DataFrame(
        [(1, "a", 4.0, "r1"), (1, "b", 6.0, "r2"), (2, "a", 7.0, "r3"), (2, "b", None, "r4"), (3, "a", 1.0, "r5"),
         (3, "a", 9.0, "r6"), (3, "a", None, "r7"), (3, "b", 11.0, "r8")],
        columns=["seed", "stream", "value", "run"],
    )  # fmt: skip
    cell = pivot({(0, "x"): entries})[0, "x"]
    assert (cell.value, cell.sd, cell.seeds) == (7.5, pytest.approx(12.5**0.5), 2)  # of the seeds 1 and 3: 5 and 10
    assert cell.runs == tuple(entries["run"])
    assert pivot({(0, "x"): entries[:2]})[0, "x"].sd is None
    assert pivot({(0, "x"): entries[:0]}) == pivot({}) == {}
    assert Cell(6.0, published=5.5).difference == 0.5


def test_any_terminal_can_show_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", terminal)
        print_text("LMR − TENT, café")
    terminal.seek(0)
    assert terminal.read() == "LMR ? TENT, caf?\n"
