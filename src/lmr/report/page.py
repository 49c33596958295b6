"""One HTML page with everything in a report: it needs no network and no other file, and escapes every name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lmr.bench.running.row import Row
from lmr.report.figures.drawing import Drawing
from lmr.report.row_traits import LineKind, stream_of
from lmr.report.series import Series, sort_domains
from lmr.report.tables.lines import describe_data
from lmr.report.tables.table import Cell, Line, ReportTable, show_number
from lmr.report.tables.table_formats import DIFFERENCE, PUBLISHED, SPREAD, cite, list_notes

TEMPLATE = Path(__file__).with_name("page.html")
CURVE_ROLES = {LineKind.OURS: "ours", LineKind.BASELINE: "baseline"}  # the page has colours for these two


def build_page(
    title: str,
    summary: str,
    tables: Sequence[ReportTable],
    drawings: Sequence[Drawing],
    curves: Mapping[str, Any],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> str:
    """The page. ``curves`` is what ``collect_curves`` returns; ``notes`` are shown at the top."""
    sections = ("tables", "curves", "figures", "protocols")
    parts = {
        "TITLE": escape(title),
        "SUMMARY": escape(summary),
        "NAVIGATION": " ".join(f'<a href="#{name}">{name}</a>' for name in sections),
        "NOTES": _make_list(notes),
        "TABLES": "\n".join(map(_make_table, tables)),
        "FIGURES": _make_figures(drawings),
        "PROTOCOLS": _make_protocols(tables),
        "DATA": _make_data(curves, rows, tables),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda found: parts[found[1]], template)


def collect_curves(groups: Mapping[str, Sequence[Series]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Name of a group -> domain -> one curve per series, of its first seed."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, series in groups.items():
        for one in series:
            for domain in dict.fromkeys(row.domain for row in one.rows):
                row = next((r for r in reversed(one.rows) if (r.domain, r.seed) == (domain, one.seeds[0])), None)
                if row is not None and _is_curve(row.curve):
                    found.setdefault(name, {}).setdefault(domain, []).append(_make_curve(one, row))
    return {name: {domain: curves[domain] for domain in sort_domains(curves)} for name, curves in found.items()}


def _make_curve(one: Series, row: Row) -> dict[str, Any]:
    return {
        "label": one.label,
        "role": CURVE_ROLES.get(one.kind, ""),
        "images": row.curve["images"],
        "accuracy": [round(value, 4) for value in row.curve["accuracy"]],
    }


def _is_curve(curve: Mapping[str, Any]) -> bool:
    images, accuracy = curve.get("images"), curve.get("accuracy")
    lists = isinstance(images, list) and isinstance(accuracy, list) and len(images) == len(accuracy) > 0
    return lists and all(isinstance(value, int | float) for value in [*(images or []), *(accuracy or [])])


def _make_list(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _make_table(table: ReportTable) -> str:
    heads = "".join(f'<th scope="col" title="{escape(c.key)}">{escape(c.head)}</th>' for c in table.columns)
    body = []
    for line, ranks in zip(table.lines, table.rank(), strict=True):
        body.append(_make_measured(table, line, ranks))
        if line.has_spread:
            body.append(_make_other(table, line, f"± {SPREAD}", lambda cell: cell.sd))
        if line.has_published:
            body.append(_make_other(table, line, PUBLISHED, lambda cell: cell.published))
            body.append(_make_other(table, line, DIFFERENCE, lambda cell: cell.difference, sign=True))
    return (
        f'<section id="{_make_id(table.name)}"><h3>{escape(table.title)}</h3><div class="scroll" tabindex="0" '
        f'role="region" aria-label="{escape(table.title)}"><table>'
        f'<thead><tr><th scope="col">{escape(table.corner)}</th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{_make_list(list_notes(table))}</section>"
    )


def _make_measured(table: ReportTable, line: Line, ranks: Sequence[int]) -> str:
    cells = []
    for cell, column, rank in zip(line.cells, table.columns, ranks, strict=True):
        name = ("", "best", "second")[rank]
        attributes = f' class="{name}"' if name else ""
        if cell.runs:
            attributes += (
                f' data-runs="{escape(" ".join(cell.runs))}" data-what="{escape(f"{line.label}, {column.key}")}"'
            )
            attributes += f' data-published="{escape(_describe_published(table, line, cell))}"'
        cells.append(f"<td{attributes}><span>{show_number(cell.value, column.digits)}</span></td>")
    ours = " ours" if line.kind is LineKind.OURS else ""
    return f'<tr class="measured{ours}"><th scope="row">{escape(line.label)}</th>{"".join(cells)}</tr>'


def _make_other(table: ReportTable, line: Line, kind: str, read: Any, sign: bool = False) -> str:
    cells = []
    for cell, column in zip(line.cells, table.columns, strict=True):
        value = read(cell)
        name = ""
        if sign and value and column.higher is not None:
            name = ' class="up"' if (value > 0) == column.higher else ' class="down"'
        cells.append(f"<td{name}>{show_number(value, column.digits, sign)}</td>")
    return f'<tr class="other"><th scope="row">{escape(kind)}</th>{"".join(cells)}</tr>'


def _describe_published(table: ReportTable, line: Line, cell: Cell) -> str:
    if cell.published is None:
        return ""
    where = f" Our protocol differs: {'; '.join(line.differs)}." if line.differs else ""
    source = f", {cite(table.published)}" if table.published else ""
    return f"Published: {cell.published:g}{source}.{where}"


def _make_figures(drawings: Sequence[Drawing]) -> str:
    figures = [
        f'<figure id="{_make_id(d.name)}">{clean_svg(d.svg, d.name, d.caption)}'
        f"<figcaption><b>Figure {escape(d.number)}</b> {escape(d.caption)}</figcaption></figure>"
        for d in drawings
    ]
    return (
        f'<div class="figures">{"".join(figures)}</div>'
        if figures
        else "<p>The runs do not contain what the figures need.</p>"
    )


def clean_svg(svg: str, name: str, caption: str) -> str:
    """An SVG file for use inside a page: no prologue, no metadata, ids that no other figure has."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    prefix = _make_id(name)
    body = re.sub(r'(\sid=")', rf"\g<1>{prefix}-", body)
    body = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{prefix}-", body)
    body = re.sub(r'\s(width|height)="[\d.]+pt"', "", body, count=2)
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)


def _make_protocols(tables: Sequence[ReportTable]) -> str:
    """Every line's protocol and command in plain HTML, for readers without scripts and for print."""
    blocks = []
    for table in tables:
        lines = []
        for line in table.lines:
            facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in line.protocol)
            differs = f"<dt>differs</dt><dd>{escape('; '.join(line.differs))}</dd>" if line.differs else ""
            lines.append(
                f"<details><summary>{escape(line.label)}</summary><dl>{facts}{differs}</dl><pre>{escape(line.command)}</pre></details>"
            )
        blocks.append(f"<details><summary>{escape(table.title)}</summary>{''.join(lines)}</details>")
    return "\n".join(blocks)


def _make_data(curves: Mapping[str, Any], rows: Sequence[Row], tables: Sequence[ReportTable]) -> str:
    used = {run for table in tables for line in table.lines for cell in line.cells for run in cell.runs}
    runs = {row.run: {"protocol": describe_row(row), "command": row.command} for row in rows if row.run in used}
    # "<" could end the script element; as an escape it means the same to JSON.
    return json.dumps({"curves": curves, "runs": runs}, ensure_ascii=False).replace("<", "\\u003c")


def describe_row(row: Row) -> dict[str, str]:
    """The whole protocol of one run."""
    where = "all domains" if stream_of(row).several else row.domain
    return {
        "run": row.run,
        "method": row.spec,
        "backbone": ", ".join(f"{key} {value}" for key, value in row.backbone.items()),
        "data": f"{row.dataset}, {where}, severity {row.severity}, {row.images} images, digest {row.data_digest}"
        + (f" ({describe_data(row)})" if row.protocol else ""),
        "prompts": ", ".join(f"{key} {value}" for key, value in row.prompts.items()),
        "stream": f"batches of {row.batch_size}, order {row.order_words} with seed {row.seed} "
        f"(hash {row.order.get('hash')}), reset: {row.reset}, answers {row.emit} the batch's own update",
        "versions": ", ".join(f"{key} {value}" for key, value in row.versions.items()),
        "finished": row.finished,
    }


def _make_id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name)
