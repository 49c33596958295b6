"""One HTML page with everything in a report: it needs no network and no other file, and escapes every name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from lmr.bench.running.row import Row
from lmr.core.extras import require
from lmr.report.drawing import Drawing
from lmr.report.formats import list_rows
from lmr.report.groups import RunGroup, describe_data, sort_domains
from lmr.report.table import Cell, Line, Table
from lmr.report.traits import LineKind, stream_of

Curves = dict[str, dict[str, list[dict[str, Any]]]]  # name -> domain -> lines
TEMPLATE = Path(__file__).with_name("page.html")
CURVE_ROLES = {LineKind.OURS: "ours", LineKind.BASELINE: "baseline"}  # the page has colours for these two


@dataclass(frozen=True)
class Page:
    """The content of a page: what is shown, and the rows that its numbers are from."""

    title: str
    summary: str
    tables: Sequence[Table]
    rows: Sequence[Row]
    notes: Sequence[str] = ()  # shown at the top
    drawings: Sequence[Drawing] = ()
    absent: str = ""  # a sentence on figures that are not drawn
    curves: Curves = field(default_factory=dict)


def build_page(page: Page) -> str:
    """Return the page as HTML."""
    require("jinja2", "bench", "A report")
    import jinja2
    from markupsafe import Markup

    used = set().union(*(table.runs for table in page.tables))
    runs = {row.run: {"protocol": describe_row(row), "command": row.command} for row in page.rows if row.run in used}
    # "<" could end the script element; as an escape it means the same to JSON.
    data = json.dumps({"curves": page.curves, "runs": runs}, ensure_ascii=False).replace("<", "\\u003c")
    parts = {"tables": True, "curves": page.curves, "figures": page.drawings or page.absent, "protocols": True}
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        page=page,
        sections=[name for name, there in parts.items() if there],
        has_others=any(not row.measured for table in page.tables for row in list_rows(table)),
        has_forwards=any(column.key == "forwards" for table in page.tables for column in table.columns),
        data=Markup(data),
        list_rows=list_rows,
        make_id=_make_id,
        clean_svg=lambda drawing: Markup(clean_svg(drawing)),
        describe_published=_describe_published,
    )


def collect_curves(found: Mapping[str, Sequence[RunGroup]]) -> Curves:
    """Return, by name and domain, the running accuracy of every group, of its first seed."""
    curves: Curves = {}
    for name, groups in found.items():
        for one in groups:
            rows = {row.domain: row for row in one.rows if row.seed == one.seeds[0]}
            for domain, row in rows.items():
                if _is_curve(row.curve):
                    curve = {
                        "label": one.label,
                        "role": CURVE_ROLES.get(one.kind, ""),
                        "images": row.curve["images"],
                        "accuracy": [round(value, 4) for value in row.curve["accuracy"]],
                    }
                    curves.setdefault(name, {}).setdefault(domain, []).append(curve)
    return {name: {domain: own[domain] for domain in sort_domains(own)} for name, own in curves.items()}


def _is_curve(curve: Mapping[str, Any]) -> bool:
    images, accuracy = curve.get("images"), curve.get("accuracy")
    lists = isinstance(images, list) and isinstance(accuracy, list) and len(images) == len(accuracy) > 0
    return lists and all(isinstance(value, int | float) for value in [*(images or []), *(accuracy or [])])


def _describe_published(table: Table, line: Line, cell: Cell) -> str:
    if cell.published is None:
        return ""
    where = f" Our protocol differs: {'; '.join(line.differs)}." if line.differs else ""
    source = f", {table.published.cite()}" if table.published else ""
    return f"Published: {cell.published:g}{source}.{where}"


def clean_svg(drawing: Drawing) -> str:
    """Return an SVG file for use inside a page: no prologue, no metadata, ids that no other figure has."""
    body = drawing.svg[drawing.svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    prefix = _make_id(drawing.name)
    body = re.sub(r'(\sid=")', rf"\g<1>{prefix}-", body)
    body = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{prefix}-", body)
    body = re.sub(r'\s(width|height)="[\d.]+pt"', "", body, count=2)
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(drawing.caption)}"', 1)


def describe_row(row: Row) -> dict[str, str]:
    """Return the whole protocol of one run."""
    where = "all domains" if stream_of(row).several else row.domain
    return {
        "run": row.run,
        "method": row.spec,
        "backbone": ", ".join(f"{key} {value}" for key, value in row.backbone.items()),
        "data": f"{row.dataset}, {where}, severity {row.severity}, {row.images} images, digest {row.data_digest}"
        + (f" ({describe_data(row)})" if row.protocol else ""),
        "prompts": ", ".join(f"{key} {value}" for key, value in row.prompts.items()),
        "stream": f"batches of {row.batch_size}, order {row.order_text} with seed {row.seed} "
        f"(hash {row.order.get('hash')}), reset: {row.reset}, answers {row.emit} the batch's own update",
        "versions": ", ".join(f"{key} {value}" for key, value in row.versions.items()),
        "finished": row.finished,
    }


def _make_id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name)
