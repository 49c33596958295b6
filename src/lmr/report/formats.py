"""Tables as terminal text, Markdown, LaTeX, CSV and HTML: the same numbers in five formats.

Below each line are its spread over seeds, its published numbers and the differences, if there are any.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from lmr.core.extras import require
from lmr.report.published import AVERAGE
from lmr.report.table import Cell, Column, Line, Table, show_number
from lmr.report.traits import LineKind

_RULE = box.Box("    \n    \n----\n    \n    \n    \n    \n    \n", ascii=True)  # a line of dashes below the heads
_SPACE = "\u2800"  # a blank that rich does not strip before it aligns a text to the right
_ASCII = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "±": "+-", "×": "x", "…": "...", "→": "->", "δ": "delta", "≤": "<=", "≥": ">=",
        "·": "*", "‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ",
    }
)  # fmt: skip
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "±": r"$\pm$", "δ": r"$\delta$", "–": "--", "−": "$-$", "×": r"$\times$", "≤": r"$\le$", "·": r"$\cdot$",
    }
)  # fmt: skip


@dataclass(frozen=True)
class ShownCell:
    """A cell as it is shown: its text, its rank in the column (0: none), and what it is made of."""

    text: str
    value: float | None
    rank: int
    cell: Cell
    column: Column
    better: bool | None = None  # of a difference: whether ours is the better number


@dataclass(frozen=True)
class ShownRow:
    """A row of a shown table: the numbers of a line, or what is below them."""

    line: Line
    kind: str  # "measured", "± sd", "published" or "difference"
    cells: tuple[ShownCell, ...]

    @property
    def measured(self) -> bool:
        """True for the numbers of the line itself."""
        return self.kind == "measured"


_KINDS: dict[str, Callable[[Cell], float | None]] = {
    "measured": lambda cell: cell.value,
    "± sd": lambda cell: cell.sd,
    "published": lambda cell: cell.published,
    "difference": lambda cell: cell.difference,
}


def list_rows(table: Table) -> Iterator[ShownRow]:
    """Yield the rows that every format shows."""
    for line, ranks in zip(table.lines, table.rank(), strict=True):
        for kind, read in _KINDS.items():
            values = [read(cell) for cell in line.cells]
            present = line.has_published if kind == "difference" else any(value is not None for value in values)
            if kind != "measured" and not present:
                continue
            cells = []
            for cell, column, value, rank in zip(line.cells, table.columns, values, ranks, strict=True):
                signed = kind == "difference"
                better = (value > 0) == column.higher if signed and value and column.higher is not None else None
                text = show_number(value, column.digits, signed)
                cells.append(ShownCell(text, value, rank if kind == "measured" else 0, cell, column, better))
            yield ShownRow(line, kind, tuple(cells))


def _list_heads(table: Table) -> list[str]:
    return [table.corner, *(column.head for column in table.columns)]


def format_terminal(table: Table, style: bool = False, encoding: str | None = "utf-8") -> str:
    """Return aligned text. With ``style`` best is bold and second underlined by terminal codes, else marked * and +.

    What ``encoding`` cannot show is spelled in ASCII before the columns are aligned.
    """

    def show(text: str) -> str:
        return spell("".join(sign if sign.isprintable() else "?" for sign in text), encoding)

    grid = Grid(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    signs = ("", "", "") if style else (_SPACE, "*", "+")
    styles = ("", "bold", "underline") if style else ("", "", "")
    grid.add_column(Text(show(table.corner)), no_wrap=True)
    for column in table.columns:
        grid.add_column(Text(show(column.head) + signs[0]), justify="right", no_wrap=True)
    ranked = False
    for row in list_rows(table):
        label = show(row.line.label if row.measured else f"  {row.kind}")
        ranked = ranked or any(cell.rank for cell in row.cells)
        cells = (Text(show(cell.text) + signs[cell.rank], styles[cell.rank]) for cell in row.cells)
        grid.add_row(Text(label), *cells)
    text = io.StringIO()
    console = Console(
        file=text, width=1 << 20, force_terminal=style, color_system="standard" if style else None, legacy_windows=False
    )
    console.print(grid, crop=False)
    lines = [line.replace(_SPACE, " ").rstrip() for line in text.getvalue().splitlines()]
    key = "best bold, second underlined." if style else "* best, + second."
    notes = [*([key] if ranked else []), *map(show, table.list_notes())]
    return "\n".join([show(table.title), "", *map(show, table.lead), *lines, "", *notes]) + "\n"


def format_markdown(table: Table) -> str:
    """Return a Markdown table with its title as a heading and its notes below."""
    marks = ("{}", "**{}**", "<u>{}</u>")
    rows = [[escape_markdown(head) for head in _list_heads(table)], ["---", *("---:" for _ in table.columns)]]
    for row in list_rows(table):
        label = escape_markdown(row.line.label) if row.measured else f"*{row.kind}*"
        rows.append([label, *(marks[cell.rank].format(cell.text) for cell in row.cells)])
    body = ["| " + " | ".join(row) + " |" for row in rows]
    notes = [f"- {escape_markdown(note)}" for note in table.list_notes()]
    lead = [*(f"- {escape_markdown(text)}" for text in table.lead), ""] if table.lead else []
    return "\n".join([f"### {escape_markdown(table.title)}", "", *lead, *body, *([""] if notes else []), *notes]) + "\n"


def format_latex(table: Table) -> str:
    """Return a LaTeX table for ``booktabs``; best bold, second underlined, as in the paper."""
    require("jinja2", "bench", "A LaTeX table")  # pandas writes LaTeX with it
    marks = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
    rows, last = [], 0
    for row in list_rows(table):
        label = escape_latex(row.line.label) if row.measured else rf"\quad\textit{{{escape_latex(row.kind)}}}"
        label = rf"\textbf{{{label}}}" if row.measured and row.line.kind is LineKind.OURS else label
        rows.append([label, *(marks[cell.rank].format(escape_latex(cell.text)) for cell in row.cells)])
        last += row.line is table.lines[-1]
    layout = "l" + "c" * len(table.columns)
    if table.columns and table.columns[-1].key == AVERAGE:
        layout = "l|" + "c" * (len(table.columns) - 1) + "|c"
    heads = [rf"\textbf{{{escape_latex(head)}}}" for head in _list_heads(table)]
    tabular = pd.DataFrame(rows, columns=heads).to_latex(index=False, escape=False, column_format=layout).splitlines()
    if len(table.lines) > 1 and table.lines[-1].kind is LineKind.OURS:
        tabular.insert(-2 - last, r"\midrule")
    notes = [f"% {' '.join(note.split())}" for note in (*table.lead, *table.list_notes())]
    return "\n".join(
        [
            *notes, r"\begin{table*}[t]", r"\centering", rf"\caption{{{escape_latex(table.title)}}}",
            rf"\label{{tab:{re.sub(r'[^A-Za-z0-9]+', '-', table.name)}}}", r"\setlength{\tabcolsep}{3.2pt}",
            r"\resizebox{\textwidth}{!}{", *tabular, "}", r"\end{table*}",
        ]
    ) + "\n"  # fmt: skip


def format_csv(table: Table) -> str:
    """Return a line per method and kind of number (measured, sd, published, difference), all digits kept.

    Batch size, images, seeds and differences, which other formats have in the notes, are columns here.
    """
    facts = ("batch size", "images")
    heads = [table.corner, "kind", *(column.key for column in table.columns), *facts, "seeds", "differs"]
    rows = []
    for row in list_rows(table):
        values = [cell.value for cell in row.cells]
        if row.measured or any(value is not None for value in values):
            protocol = dict(row.line.protocol)
            seeds = max((cell.seeds for cell in row.line.cells), default=0)
            own = [*(protocol.get(fact, "") for fact in facts), seeds, "; ".join(row.line.differs)]
            rows.append([row.line.label, row.kind.removeprefix("± "), *values, *own])
    return pd.DataFrame(rows, columns=heads).to_csv(index=False, float_format="%.6g", lineterminator="\n")


FORMATS: dict[str, Callable[[Table], str]] = {
    "txt": format_terminal,
    "md": format_markdown,
    "tex": format_latex,
    "csv": format_csv,
}


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    plain = " ".join(text.split())
    return "".join(sign if sign.isprintable() else "?" for sign in plain).translate(_LATEX)


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, inside a table too."""
    plain = re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))
    return plain.replace("\\<", "&lt;").replace("\\>", "&gt;")


def spell(text: str, encoding: str | None) -> str:
    """Return text as an encoding can show it: unchanged if it can, else in ASCII, with escapes for other letters."""
    known = encoding or "ascii"
    try:
        text.encode(known)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(known, "backslashreplace").decode(known)
    return text


def print_text(text: str = "") -> None:
    """Print to standard output, whatever characters it can show."""
    print(spell(text, getattr(sys.stdout, "encoding", None)))


def show_tables(tables: Sequence[Table]) -> None:
    """Print tables; the best number is bold on a terminal and marked with a star elsewhere."""
    for table in tables:
        print_text(format_terminal(table, sys.stdout.isatty(), getattr(sys.stdout, "encoding", None)))
