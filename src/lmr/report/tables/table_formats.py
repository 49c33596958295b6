"""Tables as terminal text, Markdown, LaTeX and csv: the same numbers in four formats.

Below each line are its published numbers and the differences, if there are any.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterator

from lmr.report.paper.paper_tables import PublishedTable
from lmr.report.row_traits import LineKind
from lmr.report.tables.table import Cell, Line, ReportTable, show_number
from lmr.report.terminal import spell

PUBLISHED, DIFFERENCE, SPREAD = "published", "difference", "sd"

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "δ": r"$\delta$", "–": "--", "−": "$-$", "×": r"$\times$", "≤": r"$\le$", "·": r"$\cdot$",
}  # fmt: skip


def format_terminal(table: ReportTable, style: bool = False, encoding: str | None = "utf-8") -> str:
    """Aligned text. With ``style`` best is bold and second underlined by terminal codes, else marked * and +.

    What ``encoding`` cannot show is spelled in ASCII before the columns are aligned.
    """

    def show(text: str) -> str:
        return spell(_make_printable(text), encoding)

    ranks_of_lines = table.rank()
    heads = [show(head) for head in (table.corner, *(column.head for column in table.columns))]
    grid: list[list[tuple[str, str]]] = [[(head, "") for head in heads]]
    for line, ranks in zip(table.lines, ranks_of_lines, strict=True):
        for kind, texts in _list_texts(table, line):
            marks = ranks if kind == "" else [0] * len(ranks)
            label = show(line.label if kind == "" else f"  {kind}")
            grid.append([(label, ""), *((show(text), ("", "b", "u")[m]) for text, m in zip(texts, marks, strict=True))])
    if not style:
        signs = {"": " ", "b": "*", "u": "+"}
        grid = [[row[0], *((text + signs[mark], "") for text, mark in row[1:])] for row in grid]
    widths = [max(_measure(row[j][0]) for row in grid) for j in range(len(heads))]
    lines = ["  ".join(_pad(*cell, widths[j], j > 0) for j, cell in enumerate(row)).rstrip() for row in grid]
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    key = "best bold, second underlined" if style else "* best, + second"
    ranked = [key + "."] if any(any(row) for row in ranks_of_lines) else []
    notes = map(show, list_notes(table))
    return "\n".join([show(table.title), "", *lines, "", *ranked, *notes]) + "\n"


def format_markdown(table: ReportTable) -> str:
    """A Markdown table with its title as a heading and its notes below."""
    rows = [[escape_markdown(head) for head in (table.corner, *(column.head for column in table.columns))]]
    for line, ranks in zip(table.lines, table.rank(), strict=True):
        for kind, texts in _list_texts(table, line):
            marks = ranks if kind == "" else [0] * len(ranks)
            wrapped = [("{}", "**{}**", "<u>{}</u>")[m].format(t) for t, m in zip(texts, marks, strict=True)]
            rows.append([escape_markdown(line.label) if kind == "" else f"*{kind}*", *wrapped])
    body = ["| " + " | ".join(row) + " |" for row in rows]
    body.insert(1, "|" + " --- |" + " ---: |" * len(table.columns))
    notes = [f"- {escape_markdown(note)}" for note in list_notes(table)]
    return "\n".join([f"### {escape_markdown(table.title)}", "", *body, *([""] if notes else []), *notes]) + "\n"


def format_latex(table: ReportTable) -> str:
    """A LaTeX table for ``booktabs``; best bold, second underlined, as in the paper."""
    heads = [table.corner, *(column.head for column in table.columns)]
    rows = [" & ".join(rf"\textbf{{{escape_latex(head)}}}" for head in heads) + r" \\", r"\midrule"]
    for line, ranks in zip(table.lines, table.rank(), strict=True):
        if line.kind is LineKind.OURS and len(table.lines) > 1 and line is table.lines[-1]:
            rows.append(r"\midrule")
        for kind, texts in _list_texts(table, line):
            marks = ranks if kind == "" else [0] * len(ranks)
            cells = [
                ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")[m].format(escape_latex(t))
                for t, m in zip(texts, marks, strict=True)
            ]
            label = escape_latex(line.label) if kind == "" else rf"\quad\textit{{{kind}}}"
            if kind == "" and line.kind is LineKind.OURS:
                label = rf"\textbf{{{label}}}"
            rows.append(" & ".join([label, *cells]) + r" \\")
    layout = "l" + "c" * len(table.columns)
    if table.columns and table.columns[-1].key == "average":
        layout = "l|" + "c" * (len(table.columns) - 1) + "|c"
    notes = [f"% {' '.join(note.split())}" for note in list_notes(table)]
    return "\n".join(
        [
            *notes, r"\begin{table*}[t]", r"\centering", rf"\caption{{{escape_latex(table.title)}}}",
            rf"\label{{tab:{re.sub(r'[^A-Za-z0-9]+', '-', table.name)}}}", r"\setlength{\tabcolsep}{3.2pt}",
            r"\resizebox{\textwidth}{!}{", rf"\begin{{tabular}}{{{layout}}}", r"\toprule", *rows, r"\bottomrule",
            r"\end{tabular}", "}", r"\end{table*}",
        ]
    ) + "\n"  # fmt: skip


def format_csv(table: ReportTable) -> str:
    """One line per method and kind of number (measured, sd, published, difference), all digits kept.

    Batch size, images, seeds and differences, which other formats have in the notes, are columns here.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    facts = ("batch size", "images")
    writer.writerow([table.corner, "kind", *(column.key for column in table.columns), *facts, "seeds", "differs"])
    reads: list[tuple[str, Callable[[Cell], float | None]]] = [
        ("measured", lambda cell: cell.value),
        (SPREAD, lambda cell: cell.sd),
        (PUBLISHED, lambda cell: cell.published),
        (DIFFERENCE, lambda cell: cell.difference),
    ]
    for line in table.lines:
        seeds, protocol = max((cell.seeds for cell in line.cells), default=0), dict(line.protocol)
        for kind, read in reads:
            values = [read(cell) for cell in line.cells]
            if kind == "measured" or any(value is not None for value in values):
                numbers = ["" if value is None else f"{value:.6g}" for value in values]
                own = [protocol.get(fact, "") for fact in facts]
                writer.writerow([line.label, kind, *numbers, *own, seeds, "; ".join(line.differs)])
    return text.getvalue()


def list_notes(table: ReportTable) -> list[str]:
    """The notes below a table: where published numbers are from, which lines differ and where, and its own notes."""
    notes = [f"Published: {cite(table.published)}."] if table.published else []
    compared = [line.differs for line in table.lines if line.has_published]
    common = [text for text in compared[0] if all(text in other for other in compared)] if len(compared) > 1 else []
    notes += [f"All lines differ from the paper: {'; '.join(common)}."] if common else []
    for line in table.lines:
        if own := [text for text in line.differs if text not in common]:
            notes.append(f"{line.label} differs from the paper: {'; '.join(own)}.")
    return notes + list(table.notes)


def cite(published: PublishedTable) -> str:
    """Where published numbers are from."""
    return f"the paper's table {published.source} ({published.title})"


def _list_texts(table: ReportTable, line: Line) -> Iterator[tuple[str, list[str]]]:
    """The numbers of a line as shown, then its spread over seeds, the published numbers and the difference."""
    pairs = list(zip(line.cells, table.columns, strict=True))
    yield "", [show_number(cell.value, column.digits) for cell, column in pairs]
    if line.has_spread:
        yield f"± {SPREAD}", [show_number(cell.sd, column.digits) for cell, column in pairs]
    if line.has_published:
        yield PUBLISHED, [show_number(cell.published, column.digits) for cell, column in pairs]
        yield DIFFERENCE, [show_number(cell.difference, column.digits, sign=True) for cell, column in pairs]


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(sign, sign) for sign in _make_printable(" ".join(text.split())))


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, inside a table too."""
    plain = re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))
    return plain.replace("\\<", "&lt;").replace("\\>", "&gt;")


def _make_printable(text: str) -> str:
    """A name cannot move the cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _measure(text: str) -> int:
    """Columns that a text takes on the screen: wide signs take two, combining ones none."""
    return sum(0 if unicodedata.combining(s) else 2 if unicodedata.east_asian_width(s) in "WF" else 1 for s in text)


def _pad(text: str, mark: str, width: int, right: bool) -> str:
    space = " " * (width - _measure(text))
    code = {"b": "1", "u": "4"}.get(mark)
    shown = f"\x1b[{code}m{text}\x1b[0m" if code else text
    return space + shown if right else shown + space
