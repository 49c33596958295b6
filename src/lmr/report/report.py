"""``lmr report``: folders of runs to tables, figures and one page that needs no network and no other file."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmr.bench.running.pack import is_pack
from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.core.files import write_atomically
from lmr.report.drawing import Drawing
from lmr.report.figures import draw_figures
from lmr.report.formats import format_csv, format_latex, format_markdown, format_rows, list_rows
from lmr.report.gains import check_reference, enter_groups, lay_gains
from lmr.report.groups import Settings, choose_main, gather
from lmr.report.leaderboard import lay_leaderboards, lay_life
from lmr.report.published import VARIANTS
from lmr.report.runs import Runs, read_runs
from lmr.report.table import Layout, Table, name_apart
from lmr.report.tables import lay_accuracy, lay_components, lay_costs, lay_measures, lay_sweeps, lay_variants
from lmr.report.verdicts import list_verdicts

PACKED = "Packed runs have predictions alone: figures of margins, gaps and recoveries are not made of them."
TRIAL = (
    "The model photo is a small one that ignores prompts and was trained on the same data as its images. So this is a "
    "test of how methods behave, not a ranking of methods on CLIP."
)
NOT_PROTOCOL = "metrics", "curve", "command"
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
    folders: Sequence[str | Path], out: str | Path, figures: bool = True, reference: str | None = None
) -> BenchReport:
    """Read runs, write ``out``/index.html, report.md, tables.csv, rows.csv, tables/ and figures/, and return it all.

    Intervals are about the ``reference``, such as "tent"; by default about our method.
    """
    runs, settings = _read(folders, reference)
    tables = build_tables(runs, settings, reference)
    drawings = draw_figures(runs, _leave_out_skewed(settings)) if figures else []
    runs.note(*([PACKED] if any(map(is_pack, set(runs.folders.values()))) else []))
    return _write(Path(out), "Benchmark report", runs, tables, drawings, list_verdicts(settings))


def make_leaderboard(folders: Sequence[str | Path], out: str | Path, reference: str | None = None) -> BenchReport:
    """Read runs, write the leaderboard as a page, report.md, tables.csv, rows.csv and tables/, and return it."""
    runs, settings = _read(folders, reference)
    runs.note(*([TRIAL] if any(row.backbone.get("name") == "photo" for row in runs.rows) else []))
    return _write(Path(out), "Leaderboard", runs, build_leaderboards(runs, settings, reference), [], [])


def _read(folders: Sequence[str | Path], reference: str | None) -> tuple[Runs, Settings]:
    runs = read_runs(folders)
    settings = gather(runs.rows)
    check_reference(reference, [one for groups in settings.values() for one in groups])
    return runs, settings


def build_tables(runs: Runs, settings: Settings, reference: str | None = None) -> list[Table]:
    """Return every table that the runs have numbers for; ``reference`` as in ``make_report``."""
    life, settings = lay_life(runs, settings), _leave_out_skewed(settings)
    layouts = [*life, *lay_variants(settings)]
    for setting, groups in settings.items():
        if setting.dataset in VARIANTS:
            continue
        main = choose_main(groups)
        layouts += [lay_accuracy(setting, main)] if main else []
        if len(main) > 1:
            layouts += [*lay_gains(runs, setting, enter_groups(main), reference), lay_measures(setting, main)]
        layouts += lay_costs(setting, groups)
    return _build([*layouts, *lay_components(settings), *lay_sweeps(settings)])


def build_leaderboards(runs: Runs, settings: Settings, reference: str | None = None) -> list[Table]:
    """Return a leaderboard for every model, and how far the reference is from the best other method."""
    return _build(lay_leaderboards(runs, settings, reference))


def _build(layouts: Iterable[Layout]) -> list[Table]:
    """Return the tables that have lines and columns, each under a name of its own."""
    tables = (layout.build() for layout in layouts if layout.lines and layout.columns)
    return name_apart(tables)


def _leave_out_skewed(settings: Settings) -> Settings:
    return {setting: groups for setting, groups in settings.items() if not setting.skewed}


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
        figures=[(drawing, base64.b64encode(drawing.svg.encode()).decode()) for drawing in drawings],
        data=Markup(data),
        list_rows=list_rows,
    )


def describe_row(row: Row) -> dict[str, str]:
    """Return the whole protocol of one run: what its row holds but for numbers and command."""
    content = {key: value for key, value in json.loads(row.to_json()).items() if key not in NOT_PROTOCOL}
    facts = {key: own if isinstance(own, dict) else {"": own} for key, own in content.items()}
    texts = {key: ", ".join(f"{k} {v}".strip() for k, v in own.items()) for key, own in facts.items()}
    return {key.replace("_", " "): text for key, text in texts.items() if text}
