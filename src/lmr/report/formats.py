"""Tables as terminal text, Markdown, LaTeX and CSV: the same numbers in every format.

Below each line are its spread over seeds, its published numbers and the differences, if there are any.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from lmr.bench.running.row import Row
from lmr.core.extras import require
from lmr.report.published import AVERAGE
from lmr.report.table import Cell, Line, Table
from lmr.report.traits import LineKind

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "±": r"$\pm$", "δ": r"$\delta$", "–": "--", "−": "$-$", "×": r"$\times$", "≤": r"$\le$", "·": r"$\cdot$",
    }
)  # fmt: skip


class ShownCell(NamedTuple):
    """A cell as it is shown: its text, its rank in the column (0: none), and what it is made of."""

    text: str
    rank: int
    value: float | None
    cell: Cell


class ShownRow(NamedTuple):
    """A row of a shown table: the numbers of a line (no kind), or what is below them."""

    line: Line
    kind: str
    cells: tuple[ShownCell, ...]


def list_rows(table: Table) -> Iterator[ShownRow]:
    """Yield the rows that every format shows: of each line its numbers, and what there is of the other kinds."""
    for line, ranks in zip(table.lines, table.rank(), strict=True):
        kinds = {
            "": [cell.value for cell in line.cells],
            "± sd": [cell.sd for cell in line.cells],
            "published": [cell.published for cell in line.cells],
            "difference": [cell.difference for cell in line.cells],
        }
        for kind, values in kinds.items():
            if not kind or any(value is not None for value in values):
                shown = (c.show(v, kind == "difference") for v, c in zip(values, table.columns, strict=True))
                marks = [0] * len(ranks) if kind else ranks
                yield ShownRow(line, kind, tuple(map(ShownCell, shown, marks, values, line.cells)))


def _list_heads(table: Table) -> list[str]:
    return [table.corner, *(column.head for column in table.columns)]


def format_terminal(table: Table) -> str:
    """Return aligned text under the title, with the notes; the best number of a column has a *, the second a +."""
    rows = [[table.corner, *(f"{column.head} " for column in table.columns)]]
    shown = list(list_rows(table))
    for row in shown:
        label = f"  {row.kind}" if row.kind else row.line.label
        rows.append([label, *(cell.text + " *+"[cell.rank] for cell in row.cells)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    lines.insert(1, "-" * (sum(widths) + 2 * len(table.columns)))
    key = ["* best, + second."] if any(cell.rank for row in shown for cell in row.cells) else []
    notes = [*key, *table.list_notes()]
    text = "\n".join([table.title, "", *lines, *([""] if notes else []), *notes]) + "\n"
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def format_markdown(table: Table) -> str:
    """Return a Markdown table with its title as a heading and its notes below."""
    marks = ("{}", "**{}**", "<u>{}</u>")
    rows = [[escape_markdown(head) for head in _list_heads(table)], ["---", *("---:" for _ in table.columns)]]
    for row in list_rows(table):
        label = f"*{row.kind}*" if row.kind else escape_markdown(row.line.label)
        rows.append([label, *(marks[cell.rank].format(cell.text) for cell in row.cells)])
    body = ["| " + " | ".join(row) + " |" for row in rows]
    notes = [f"- {escape_markdown(note)}" for note in table.list_notes()]
    return "\n".join([f"### {escape_markdown(table.title)}", "", *body, *([""] if notes else []), *notes]) + "\n"


def format_latex(table: Table) -> str:
    """Return a LaTeX table for ``booktabs``; best bold, second underlined, as in the paper."""
    require("jinja2", "bench", "A LaTeX table")  # pandas writes LaTeX with it
    marks = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
    rows, last = [], 0
    for row in list_rows(table):
        label = escape_latex(row.line.label) if not row.kind else rf"\quad\textit{{{escape_latex(row.kind)}}}"
        label = rf"\textbf{{{label}}}" if not row.kind and row.line.kind is LineKind.OURS else label
        rows.append([label, *(marks[cell.rank].format(escape_latex(cell.text)) for cell in row.cells)])
        last += row.line is table.lines[-1]
    layout = "l" + "c" * len(table.columns)
    if table.columns and table.columns[-1].key == AVERAGE:
        layout = "l|" + "c" * (len(table.columns) - 1) + "|c"
    heads = [rf"\textbf{{{escape_latex(head)}}}" for head in _list_heads(table)]
    tabular = pd.DataFrame(rows, columns=heads).to_latex(index=False, escape=False, column_format=layout).splitlines()
    if len(table.lines) > 1 and table.lines[-1].kind is LineKind.OURS:
        tabular.insert(-2 - last, r"\midrule")
    return "\n".join(
        [
            *(f"% {' '.join(note.split())}" for note in table.list_notes()), r"\begin{table*}[t]", r"\centering",
            rf"\caption{{{escape_latex(table.title)}}}", rf"\label{{tab:{re.sub(r'[^A-Za-z0-9]+', '-', table.name)}}}",
            r"\setlength{\tabcolsep}{3.2pt}", r"\resizebox{\textwidth}{!}{", *tabular, "}", r"\end{table*}",
        ]
    ) + "\n"  # fmt: skip


def format_csv(tables: Iterable[Table]) -> str:
    """Return a line per number, all digits kept: its table, line and column, and its runs."""
    cells = [
        {
            "table": table.name, "line": line.label, "column": column.key, "value": cell.value, "sd": cell.sd,
            "seeds": cell.seeds, "published": cell.published, "differs": "; ".join(line.differs),
            "runs": " ".join(cell.runs),
        }
        for table in tables
        for line in table.lines
        for column, cell in zip(table.columns, line.cells, strict=True)
        if cell.value is not None or cell.published is not None
    ]  # fmt: skip
    return pd.DataFrame(cells).to_csv(index=False, float_format="%.6g", lineterminator="\n")


def format_rows(rows: Iterable[Row]) -> str:
    """Return a line per run with its whole protocol and all metrics, for ``pandas.read_csv``; curves are left out."""
    contents = [{k: v for k, v in json.loads(row.to_json()).items() if k != "curve"} for row in rows]
    return pd.json_normalize(contents).to_csv(index=False, lineterminator="\n")


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    plain = " ".join(text.split())
    return "".join(sign if sign.isprintable() else "?" for sign in plain).translate(_LATEX)


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, inside a table too."""
    plain = re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))
    return plain.replace("\\<", "&lt;").replace("\\>", "&gt;")


def print_text(text: str = "") -> None:
    """Print to standard output; a character that it cannot show is a question mark."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    print(text.encode(encoding, "replace").decode(encoding))


def show_tables(tables: Sequence[Table]) -> None:
    """Print tables; characters that move the cursor or colour the terminal are not printed."""
    for table in tables:
        print_text(format_terminal(table))
