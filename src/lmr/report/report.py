"""``lmr report``: folders of runs to tables, figures and one page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.report.figures.drawing import FORMS, Drawing
from lmr.report.figures.haul_figure import draw_hauls, is_haul_figure
from lmr.report.figures.paper_figures import FigureSet, draw_figures, find_panel
from lmr.report.noted import Noted, join_notes
from lmr.report.page import build_page, collect_curves
from lmr.report.paper.abbreviations import VARIANTS
from lmr.report.paper.paper_tables import describe_paper, find_published
from lmr.report.row_traits import LineKind, StreamKind, label_of
from lmr.report.runs import Runs, read_runs
from lmr.report.series import Series, Setting, gather
from lmr.report.tables.by_corruption import build_accuracy, build_parts
from lmr.report.tables.by_dataset import build_components, list_variants
from lmr.report.tables.gains import build_gains
from lmr.report.tables.life_table import build_life
from lmr.report.tables.measures import build_costs, build_measures
from lmr.report.tables.selection import choose_main, choose_together, group_parts, note_main, with_base
from lmr.report.tables.severities import build_severities
from lmr.report.tables.sweeps import build_sweep_table, find_sweeps
from lmr.report.tables.table import ReportTable, find_kind
from lmr.report.tables.table_formats import format_csv, format_latex, format_markdown, format_terminal
from lmr.report.terminal import find_encoding, print_text

FORMATS: dict[str, Callable[[ReportTable], str]] = {
    "txt": format_terminal,
    "md": format_markdown,
    "tex": format_latex,
    "csv": format_csv,
}


@dataclass(frozen=True)
class BenchReport:
    """What was made from the runs."""

    tables: tuple[ReportTable, ...]
    drawings: tuple[Drawing, ...]
    notes: tuple[str, ...]
    page: Path


def make_report(
    folders: Sequence[str | Path], out: str | Path, beside: str | None = None, figures: bool = True
) -> BenchReport:
    """Read runs, write ``out``/index.html, report.md, tables/ and figures/, and return what was made.

    ``beside`` names a published table to compare runs on other data with.
    """
    runs = read_runs(folders)
    settings = gather(runs.rows)
    made = build_tables(runs, settings, beside)
    drawn = draw_figures(runs, settings) if figures else FigureSet()
    hauls = draw_hauls(runs, settings) if figures else Noted(())
    tables, drawings = made.value, (*hauls.value, *drawn.drawings)
    notes = join_notes(runs.notes, made.notes, hauls.notes, drawn.notes, drawn.missing, _list_faults(tables))
    out = Path(out)
    page = out / "index.html"
    paper = describe_paper()
    summary = f"{len(runs.rows)} runs from {', '.join(map(str, folders))}. "
    summary += f"Published numbers: {paper['title']}, {paper['venue']}, doi {paper['doi']}."
    curves = collect_curves(_pick_curves(settings))
    content = build_page("lmr benchmark report", summary, tables, drawings, curves, runs.rows, notes)
    _make_folder(out)
    for table in tables:
        for form, write in FORMATS.items():
            (out / "tables" / f"{table.name}.{form}").write_text(write(table), encoding="utf-8")
    for drawing in drawings:
        drawing.write(out / "figures")
    _remove_old(out / "tables", find_kind, tuple(FORMATS), {table.name for table in tables})
    _remove_old(out / "figures", _is_figure, FORMS, {drawing.name for drawing in drawings})
    write_atomically(out / "report.md", _join_markdown(summary, tables, drawings, notes).encode())
    write_atomically(page, content.encode())
    return BenchReport(tables, drawings, notes, page)


def build_tables(
    runs: Runs, settings: dict[Setting, list[Series]], beside: str | None = None
) -> Noted[tuple[ReportTable, ...]]:
    """Every table that the runs have numbers for; ``beside`` as in ``make_report``."""
    published = find_published(beside) if beside else None
    life = build_life(runs, settings)
    tables: list[ReportTable | None] = [*life.value, *list_variants(settings)]
    costs = {setting: build_costs(setting, series) for setting, series in settings.items()}
    sweeps = [build_sweep_table(sweep) for sweep in find_sweeps(settings)]
    elsewhere = _list_runs([*sweeps, *costs.values()])
    adapted = {s.family for s, series in settings.items() if not _is_baseline(series)}
    notes: list[tuple[str, ...]] = []
    for setting, series in settings.items():
        if setting.dataset in VARIANTS or (setting.family in adapted and _is_baseline(series)):
            continue  # the variants have their own table, and so has the baseline alone at other severities
        main = choose_main(series)
        together = choose_together(series, main)
        shown = elsewhere | {one.first.run for one in together}
        unseen = [one for one in series if one.first.run not in shown]
        about = [*_note_clean(setting, settings), *note_main(main, unseen)]
        tables.append(build_accuracy(setting, main, published, about))
        tables += [build_parts(setting, with_base(parts, series)) for parts in group_parts(series)]
        if len(main) > 1:
            gains = build_gains(runs, setting, main)
            notes.append(gains.notes)
            tables += [gains.value, build_measures(setting, main)]
        if together:
            gains = build_gains(runs, setting, together)
            notes.append(gains.notes)
            alike = build_accuracy(setting, together, published), gains.value
            tables += [_name_size(table, together[0].first.batch_size) for table in alike if table is not None]
        tables.append(costs[setting])
    tables += [*build_components(settings), *build_severities(settings), *sweeps]
    return Noted(_name_apart([table for table in tables if table is not None]), join_notes(life.notes, *notes))


def _name_size(table: ReportTable, size: int) -> ReportTable:
    """A table of which all lines have one batch size, where the main one has several."""
    return replace(table, name=f"{table.name}-b{size}", title=f"{table.title}, all in batches of {size}")


def _is_baseline(series: Sequence[Series]) -> bool:
    """Whether nothing but the baseline was run."""
    return all(one.kind is LineKind.BASELINE for one in series)


def _list_runs(tables: Iterable[ReportTable | None]) -> set[str]:
    """The runs that numbers of these tables come from."""
    there = (table for table in tables if table is not None)
    return {run for table in there for line in table.lines for cell in line.cells for run in cell.runs}


def _note_clean(setting: Setting, settings: dict[Setting, list[Series]]) -> list[str]:
    """The accuracy of the baseline on the clean images, if that was run."""
    clean = settings.get(replace(setting, severity=0, stream=StreamKind.DOMAIN), []) if setting.severity else []
    found = [(one.label, one.collect("clean")) for one in clean if one.kind is LineKind.BASELINE]
    return [f"Accuracy of {label} on the clean images: {next(iter(a.values())):.2f}." for label, a in found[:1] if a]


def _name_apart(tables: Sequence[ReportTable]) -> tuple[ReportTable, ...]:
    """No two tables may have the same files."""
    named: list[ReportTable] = []
    for table in tables:
        taken = {other.name for other in named}
        number = next(
            n for n in range(1, len(tables) + 1) if (table.name if n == 1 else f"{table.name}-{n}") not in taken
        )
        named.append(table if number == 1 else replace(table, name=f"{table.name}-{number}"))
    return tuple(named)


def _pick_curves(settings: dict[Setting, list[Series]]) -> dict[str, list[Series]]:
    """The series of the main tables, and of the parts of methods, under their settings."""
    found: dict[str, list[Series]] = {}
    for setting, series in settings.items():
        found.setdefault(setting.describe(), []).extend(choose_main(series))
        for parts in group_parts(series):
            name = f"{setting.describe()}, parts of {label_of(parts[0].first)}"
            found.setdefault(name, []).extend(with_base(parts, series))
    return found


def _list_faults(tables: Sequence[ReportTable]) -> list[str]:
    """Where the paper contradicts itself, if such numbers are shown."""
    shown = {table.published.name for table in tables if table.published}
    return [
        f"In the paper's table {find_published(fault['table']).source} the row {fault['row']} of {fault['table']} has "
        f"the average {fault['average']}, but the mean of its columns is {fault['mean_of_columns']}. {fault['note']}"
        for fault in describe_paper()["faults"]
        if fault["table"] in shown
    ]


def _is_figure(name: str) -> bool:
    return find_panel(name) is not None or is_haul_figure(name)


def _make_folder(out: Path) -> None:
    try:
        (out / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot create the folder {str(out)!r} for the report: {error.strerror}.") from error


def _remove_old(folder: Path, find: Callable[[str], object], forms: Sequence[str], kept: set[str]) -> None:
    """Delete what an earlier report left in a folder: files with our names in all of our formats, and no others.

    ``find`` says of a file name what kind of thing it belongs to; nothing if it is not ours.
    """
    for name in {path.stem for path in folder.glob("*") if find(path.stem)} - kept:
        paths = [folder / f"{name}.{form}" for form in forms]
        for path in paths if all(path.is_file() for path in paths) else ():
            path.unlink()


def _join_markdown(
    summary: str, tables: Sequence[ReportTable], drawings: Sequence[Drawing], notes: Sequence[str]
) -> str:
    parts = ["# Benchmark report", summary, *(f"- {note}" for note in notes), *map(format_markdown, tables)]
    parts += [f"![Figure {d.number}](figures/{d.name}.svg)\n\n**Figure {d.number}.** {d.caption}" for d in drawings]
    return "\n\n".join(parts) + "\n"


def show_tables(tables: Sequence[ReportTable]) -> None:
    """Print tables; the best number is bold on a terminal and marked with a star elsewhere."""
    style = sys.stdout.isatty()
    for table in tables:
        print_text(format_terminal(table, style, find_encoding()))
