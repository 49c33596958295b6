"""``lmr report``: folders of runs to tables, figures and one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmr.bench.running.pack import is_pack
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.report.drawing import FORMS, Drawing
from lmr.report.figures import draw_figures, is_figure, list_absent
from lmr.report.formats import FORMATS, format_markdown
from lmr.report.gains import Compared, build_gains, enter_groups
from lmr.report.groups import RunGroup, Setting, Settings, gather
from lmr.report.leaderboard import build_leaderboards, build_life
from lmr.report.page import Curves, Page, build_page, collect_curves
from lmr.report.published import VARIANTS, find_published, read_paper
from lmr.report.runs import Runs, read_runs
from lmr.report.selection import add_base, choose_main, choose_together, group_parts, note_main
from lmr.report.skew import build_skew
from lmr.report.sweeps import build_sweep_table, find_sweeps
from lmr.report.table import Table, find_kind, name_apart
from lmr.report.tables import (
    build_accuracy,
    build_components,
    build_costs,
    build_measures,
    build_parts,
    build_severities,
    build_variants,
)
from lmr.report.traits import LineKind, StreamKind, label_of

PACKED = "Packed runs have predictions alone: figures of margins, gaps and recoveries are not made of them."


@dataclass(frozen=True)
class BenchReport:
    """Tables, drawings and notes that were made from runs, and the page with all of them."""

    tables: list[Table]
    drawings: list[Drawing]
    notes: list[str]
    page: Path


def make_report(
    folders: Sequence[str | Path],
    out: str | Path,
    beside: str | None = None,
    figures: bool = True,
    compared: Compared | None = None,
) -> BenchReport:
    """Read runs, write ``out``/index.html, report.md, tables/ and figures/, and return what was made.

    ``beside`` names a published table to compare runs on other data with; ``compared`` says what intervals are about.
    """
    runs, settings = _read(folders, compared)
    tables = build_tables(runs, settings, beside, compared)
    settings = _leave_out_skewed(settings)
    drawings = draw_figures(runs, settings) if figures else []
    runs.note(*_list_faults(tables), *([PACKED] if any(map(is_pack, set(runs.folders.values()))) else []))
    paper = read_paper()["paper"]
    summary = f"{_count_runs(runs, folders)} Published numbers: {paper['title']}, {paper['venue']}, doi {paper['doi']}."
    absent = list_absent(drawings) if figures else ""
    page = Page("Benchmark report", summary, tables, runs.rows, runs.notes)
    return _write(Path(out), replace(page, drawings=drawings, absent=absent, curves=_pick_curves(settings)))


def make_leaderboard(folders: Sequence[str | Path], out: str | Path, compared: Compared | None = None) -> BenchReport:
    """Read runs, write the leaderboard as a page, report.md and tables/, and return what was made."""
    runs, settings = _read(folders, compared)
    tables = name_apart(build_leaderboards(runs, settings, compared))
    return _write(Path(out), Page("Leaderboard", _count_runs(runs, folders), tables, runs.rows, runs.notes))


def _read(folders: Sequence[str | Path], compared: Compared | None) -> tuple[Runs, Settings]:
    runs = read_runs(folders)
    settings = gather(runs.rows)
    if compared:
        compared.check([one for groups in settings.values() for one in groups])
    return runs, settings


def _count_runs(runs: Runs, folders: Sequence[str | Path]) -> str:
    return f"{len(runs.rows)} runs from {', '.join(map(str, folders))}."


def _write(out: Path, page: Page) -> BenchReport:
    """Write a page, its tables and figures in all formats, and delete those of an earlier report."""
    html = build_page(page)
    try:
        (out / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot create the folder {str(out)!r} for the report: {error.strerror}.") from error
    for table in page.tables:
        for form, write in FORMATS.items():
            (out / "tables" / f"{table.name}.{form}").write_text(write(table), encoding="utf-8")
    for drawing in page.drawings:
        drawing.write(out / "figures")
    _remove_old(out / "tables", find_kind, tuple(FORMATS), {table.name for table in page.tables})
    _remove_old(out / "figures", is_figure, FORMS, {drawing.name for drawing in page.drawings})
    parts = [f"# {page.title}", page.summary, *(f"- {note}" for note in page.notes), *map(format_markdown, page.tables)]
    parts += [
        f"![Figure {d.number}](figures/{d.name}.svg)\n\n**Figure {d.number}.** {d.caption}" for d in page.drawings
    ]
    parts += [page.absent] if page.absent else []
    write_atomically(out / "report.md", ("\n\n".join(parts) + "\n").encode())
    write_atomically(out / "index.html", html.encode())
    notes = [*page.notes, *([page.absent] if page.absent else [])]
    return BenchReport(list(page.tables), list(page.drawings), notes, out / "index.html")


def build_tables(
    runs: Runs, settings: Settings, beside: str | None = None, compared: Compared | None = None
) -> list[Table]:
    """Return every table that the runs have numbers for; ``beside`` and ``compared`` as in ``make_report``."""
    published = find_published(beside) if beside else None
    skewed, settings = build_skew(runs, settings), _leave_out_skewed(settings)
    tables: list[Table | None] = [*build_life(runs, settings), *skewed, *build_variants(settings)]
    costs = {setting: build_costs(setting, groups) for setting, groups in settings.items()}
    sweeps = [build_sweep_table(sweep) for sweep in find_sweeps(settings)]
    elsewhere = {run for table in (*sweeps, *costs.values()) if table for run in table.runs}
    adapted = {setting.family for setting, groups in settings.items() if not _is_baseline(groups)}
    for setting, groups in settings.items():
        if setting.dataset in VARIANTS or (setting.family in adapted and _is_baseline(groups)):
            continue  # the variants have their own table, and so has the baseline alone at other severities
        main = choose_main(groups)
        together = choose_together(groups, main)
        shown = elsewhere | {one.first.run for one in together}
        unseen = [one for one in groups if one.first.run not in shown]
        notes = [*_note_clean(setting, settings), *note_main(main, unseen)]
        tables.append(build_accuracy(setting, main, published, notes))
        tables += [build_parts(setting, add_base(parts, groups)) for parts in group_parts(groups)]
        if len(main) > 1:
            tables += [*build_gains(runs, setting, enter_groups(main), compared), build_measures(setting, main)]
        if together:
            size = together[0].first.batch_size
            gains = build_gains(runs, setting, enter_groups(together), compared)
            for table in (build_accuracy(setting, together, published), *gains):
                if table:
                    title = f"{table.title}, all in batches of {size}"
                    tables.append(replace(table, name=f"{table.name}-b{size}", title=title))
        tables.append(costs[setting])
    tables += [*build_components(settings), *build_severities(settings), *sweeps]
    return name_apart([table for table in tables if table is not None])


def _leave_out_skewed(settings: Settings) -> Settings:
    return {setting: groups for setting, groups in settings.items() if not setting.skewed}


def _is_baseline(groups: Sequence[RunGroup]) -> bool:
    return all(one.kind is LineKind.BASELINE for one in groups)


def _note_clean(setting: Setting, settings: Settings) -> list[str]:
    """Return a note on the accuracy of the baseline on the clean images, if that was run."""
    clean = settings.get(replace(setting, severity=0, stream=StreamKind.DOMAIN), []) if setting.severity else []
    found = [(one.label, one.average(["clean"])) for one in clean if one.kind is LineKind.BASELINE]
    return [f"Accuracy of {label} on the clean images: {a.iloc[0]:.2f}." for label, a in found[:1] if len(a)]


def _pick_curves(settings: Settings) -> Curves:
    """Return the running accuracy of the main tables, and of the parts of methods, under their settings."""
    found: dict[str, list[RunGroup]] = {}
    for setting, groups in settings.items():
        found.setdefault(setting.describe(), []).extend(choose_main(groups))
        for parts in group_parts(groups):
            name = f"{setting.describe()}, parts of {label_of(parts[0].first)}"
            found.setdefault(name, []).extend(add_base(parts, groups))
    return collect_curves(found)


def _list_faults(tables: Sequence[Table]) -> list[str]:
    """Return where the paper contradicts itself, if such numbers are shown."""
    shown = {table.published.name for table in tables if table.published}
    return [
        f"In the paper's table {find_published(fault['table']).source} the row {fault['row']} of {fault['table']} has "
        f"the average {fault['average']}, but the mean of its columns is {fault['mean_of_columns']}. {fault['note']}"
        for fault in read_paper()["paper"]["faults"]
        if fault["table"] in shown
    ]


def _remove_old(folder: Path, is_ours: Callable[[str], object], forms: Sequence[str], kept: set[str]) -> None:
    """Delete the files of an earlier report from a folder: those with our names in all of our formats, no others."""
    for name in {path.stem for path in folder.glob("*") if is_ours(path.stem)} - kept:
        paths = [folder / f"{name}.{form}" for form in forms]
        for path in paths if all(path.is_file() for path in paths) else ():
            path.unlink()
