"""``lmr report``: folders of runs to tables, figures and one page that needs no network and no other file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from lmr.bench.running.pack import is_pack
from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.files import write_atomically
from lmr.report.drawing import Drawing
from lmr.report.figures import draw_figures, list_absent
from lmr.report.formats import format_csv, format_latex, format_markdown, format_rows, list_rows
from lmr.report.gains import Compared, build_gains, enter_groups
from lmr.report.groups import Settings, choose_main, choose_together, gather
from lmr.report.leaderboard import build_leaderboards, build_life, build_skew
from lmr.report.published import VARIANTS, find_published, read_paper
from lmr.report.runs import Runs, read_runs
from lmr.report.table import Table, name_apart
from lmr.report.tables import (
    build_accuracy,
    build_components,
    build_costs,
    build_measures,
    build_parts,
    build_variants,
    find_sweeps,
    split_lengths,
)
from lmr.report.traits import stream_of
from lmr.report.verdicts import list_verdicts

PACKED = "Packed runs have predictions alone: figures of margins, gaps and recoveries are not made of them."
TRIAL = (
    "The model photo is a small one that ignores prompts and was trained on the same data as its images. So this is a "
    "test of how methods behave, not a ranking of methods on CLIP."
)
TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class BenchReport:
    """Tables, drawings, notes and verdicts on published tables, made from runs, and the page with all of them."""

    tables: list[Table]
    drawings: list[Drawing]
    notes: list[str]
    page: Path
    verdicts: list[str] = field(default_factory=list)


def make_report(
    folders: Sequence[str | Path], out: str | Path, figures: bool = True, compared: Compared | None = None
) -> BenchReport:
    """Read runs, write ``out``/index.html, report.md, tables.csv, rows.csv, tables/ and figures/, and return it all.

    ``compared`` says what intervals are about.
    """
    runs, settings = _read(folders, compared)
    tables = build_tables(runs, settings, compared)
    drawings = draw_figures(runs, _leave_out_skewed(settings)) if figures else []
    runs.note(*_list_faults(tables), *([PACKED] if any(map(is_pack, set(runs.folders.values()))) else []))
    runs.note(*([absent] if figures and (absent := list_absent(drawings)) else []))
    return _write(Path(out), "Benchmark report", runs, tables, drawings, list_verdicts(settings))


def make_leaderboard(folders: Sequence[str | Path], out: str | Path, compared: Compared | None = None) -> BenchReport:
    """Read runs, write the leaderboard as a page, report.md, tables.csv, rows.csv and tables/, and return it."""
    runs, settings = _read(folders, compared)
    runs.note(*([TRIAL] if any(row.backbone.get("name") == "photo" for row in runs.rows) else []))
    return _write(Path(out), "Leaderboard", runs, name_apart(build_leaderboards(runs, settings, compared)), [], [])


def _read(folders: Sequence[str | Path], compared: Compared | None) -> tuple[Runs, Settings]:
    runs = read_runs(folders)
    settings = gather(runs.rows)
    if compared:
        compared.check([one for groups in settings.values() for one in groups])
    return runs, settings


def build_tables(runs: Runs, settings: Settings, compared: Compared | None = None) -> list[Table]:
    """Return every table that the runs have numbers for; ``compared`` as in ``make_report``."""
    skewed, settings = build_skew(runs, settings), _leave_out_skewed(settings)
    tables: list[Table | None] = [*build_life(runs, settings), *skewed, *build_variants(settings)]
    for setting, groups in settings.items():
        lengths = split_lengths(groups) if setting.dataset not in VARIANTS else []
        for own in lengths:
            main = choose_main(own)
            together = choose_together(own, main)
            ending = f"{own[0].length or 'all'} images" if len(lengths) > 1 else ""
            found: list[Table | None] = []
            for shown, size in ((main, 0), (together, together[0].first.batch_size if together else 0)):
                detail = ", ".join(filter(None, [ending, f"batches of {size}" if size else ""]))
                found += [_entitle(build_accuracy(setting, shown), detail)]
                if len(shown) > 1:
                    found += [_entitle(t, detail) for t in build_gains(runs, setting, enter_groups(shown), compared)]
                    found += [_entitle(build_measures(setting, shown), detail)] if not size else []
            found += [_entitle(build_costs(setting, own), ending)]
            tables += found
        tables += build_parts(setting, groups) if lengths else []
    tables += [*build_components(settings), *(sweep.build() for sweep in find_sweeps(settings))]
    return name_apart(table for table in tables if table is not None)


def _entitle(table: Table | None, detail: str) -> Table | None:
    """Return a table with a detail in its title and name."""
    if table is None or not detail:
        return table
    return replace(
        table, title=f"{table.title}, {detail}", name=f"{table.name}-{detail}".replace(",", "").replace(" ", "-")
    )


def _leave_out_skewed(settings: Settings) -> Settings:
    return {setting: groups for setting, groups in settings.items() if not setting.skewed}


def _list_faults(tables: Sequence[Table]) -> list[str]:
    """Return where the paper contradicts itself, if such numbers are shown."""
    shown = {table.published.name for table in tables if table.published}
    return [
        f"In the paper's table {find_published(fault['table']).source} the row {fault['row']} of {fault['table']} has "
        f"the average {fault['average']}, but the mean of its columns is {fault['mean_of_columns']}. {fault['note']}"
        for fault in read_paper()["paper"]["faults"]
        if fault["table"] in shown
    ]


def _write(
    out: Path, title: str, runs: Runs, tables: list[Table], drawings: list[Drawing], verdicts: list[str]
) -> BenchReport:
    """Write the page, and its tables and figures in all formats."""
    html = build_page(title, runs, tables, drawings, verdicts)
    try:
        (out / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot create the folder {str(out)!r} for the report: {error.strerror}.") from error
    for table in tables:
        (out / "tables" / f"{table.name}.tex").write_text(format_latex(table), encoding="utf-8")
    for drawing in drawings:
        drawing.write(out / "figures")
    parts = [f"# {title}", *(f"- {note}" for note in runs.notes), *map(format_markdown, tables)]
    parts += [f"```\n{verdict}\n```" for verdict in verdicts]
    parts += [f"![{d.name}](figures/{d.name}.svg)\n\n**Figure {d.number}.** {d.caption}" for d in drawings]
    write_atomically(out / "report.md", ("\n\n".join(parts) + "\n").encode())
    write_atomically(out / "tables.csv", format_csv(tables).encode())
    write_atomically(out / "rows.csv", format_rows(runs.rows).encode())
    write_atomically(out / "index.html", html.encode())
    return BenchReport(tables, drawings, runs.notes, out / "index.html", verdicts)


def build_page(
    title: str, runs: Runs, tables: Sequence[Table], drawings: Sequence[Drawing] = (), verdicts: Sequence[str] = ()
) -> str:
    """Return one HTML page with everything in a report; the template escapes every name."""
    require("jinja2", "bench", "A report")
    import jinja2
    from markupsafe import Markup

    used = set().union(*(table.runs for table in tables))
    facts = {row.run: {"protocol": describe_row(row), "command": row.command} for row in runs.rows if row.run in used}
    # "<" could end the script element; as an escape it means the same to JSON.
    data = json.dumps(facts, ensure_ascii=False).replace("<", "\\u003c")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        notes=runs.notes,
        count=len(runs.rows),
        tables=tables,
        verdicts=verdicts,
        figures=[(drawing, Markup(clean_svg(drawing))) for drawing in drawings],
        data=Markup(data),
        list_rows=list_rows,
    )


def clean_svg(drawing: Drawing) -> str:
    """Return an SVG file for use inside a page: no prologue, no metadata, ids that no other figure has."""
    body = drawing.svg[drawing.svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\sid=")', rf"\g<1>{drawing.name}-", body)
    body = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{drawing.name}-", body)
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
        + "".join(f", {key}: {value}" for key, value in row.protocol.items()),
        "prompts": ", ".join(f"{key} {value}" for key, value in row.prompts.items()),
        "stream": f"batches of {row.batch_size}, order {row.order_text} with seed {row.seed} "
        f"(hash {row.order.get('hash')}), reset: {row.reset}, answers {row.emit} the batch's own update",
        **({"values": _describe_choice(row)} if row.selected else {}),
        "versions": ", ".join(f"{key} {value}" for key, value in row.versions.items()),
        "finished": row.finished,
    }


def _describe_choice(row: Row) -> str:
    """Return how the values of a run were chosen."""
    chosen, published = (100 * row.selected[key] for key in ("accuracy", "published accuracy"))
    same = "the published ones, " if row.selected["published"] == row.spec else ""
    return (
        f"{same}chosen of {row.selected['values']} on {row.selected['on']}: {chosen:.2f} % there, the published ones "
        f"{published:.2f} %"
    )
