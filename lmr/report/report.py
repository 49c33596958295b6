"""``lmr report``: folders of runs to tables, figures and one page."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.report.figures.paper_figures import Drawing, draw_figures
from lmr.report.page import build_page, collect_curves
from lmr.report.paper.published import describe_paper, find_published
from lmr.report.series import Runs, Series, Setting, gather, read_runs
from lmr.report.tables.by_dataset import build_components, list_variants
from lmr.report.tables.corruptions import (
    VARIANTS,
    build_corruptions,
    build_costs,
    build_measures,
    choose_main,
    note_main,
    with_base,
)
from lmr.report.tables.formats import format_csv, format_latex, format_markdown, format_terminal
from lmr.report.tables.gains import build_gains
from lmr.report.tables.severities import build_severities
from lmr.report.tables.sweeps import build_sweep_table, find_sweeps
from lmr.report.tables.table import Table

FORMATS: dict[str, Callable[[Table], str]] = {
    "txt": format_terminal,
    "md": format_markdown,
    "tex": format_latex,
    "csv": format_csv,
}
# How the files of a report are called and in which forms each comes, by their folder.
OWN: dict[str, tuple[re.Pattern[str], tuple[str, ...]]] = {
    "tables": (
        re.compile(
            r"(accuracy|parts|gains|measures|efficiency|severities|sweep|imagenet-variants|ablation-components)"
            r"(-[a-z0-9-]+)?"
        ),
        tuple(FORMATS),
    ),
    "figures": (re.compile(r"figure-[13][a-d](-.+)?"), ("svg", "png")),
}


@dataclass(frozen=True)
class Report:
    """What was made of the runs."""

    tables: list[Table]
    drawings: list[Drawing]
    words: list[str]
    page: Path


def make_report(
    folders: Sequence[str | Path], out: str | Path, beside: str | None = None, figures: bool = True
) -> Report:
    """Read runs, write ``out``/index.html, report.md, tables/ and figures/, and give what was made."""
    runs = read_runs(folders)
    settings = gather(runs.rows)
    tables = build_tables(runs, settings, beside)
    drawings, missing = draw_figures(runs, settings) if figures else ([], [])
    words = [*runs.words, *missing, *_list_faults(tables)]
    out = Path(out)
    page = out / "index.html"
    curves = collect_curves(_pick_curves(settings))
    count = len(runs.rows)
    summary = f"{count} runs from {', '.join(map(str, folders))}; published numbers: {describe_paper()['title']}, "
    summary += f"{describe_paper()['venue']}, doi {describe_paper()['doi']}."
    content = build_page("LMR: benchmark report", summary, tables, drawings, curves, runs.rows, words)
    _make_folder(out)
    for table in tables:
        for form, write in FORMATS.items():
            (out / "tables" / f"{table.name}.{form}").write_text(write(table), encoding="utf-8")
    for drawing in drawings:
        drawing.write(out / "figures")
    _remove_old(out / "tables", {table.name for table in tables})
    _remove_old(out / "figures", {drawing.name for drawing in drawings})
    write_atomically(out / "report.md", _join_markdown(summary, tables, drawings, words).encode())
    write_atomically(page, content.encode())
    return Report(tables, drawings, words, page)


def build_tables(runs: Runs, settings: dict[Setting, list[Series]], beside: str | None = None) -> list[Table]:
    """Every table the runs have numbers for; ``beside`` names a published table to stand beside other data too."""
    published = find_published(beside) if beside else None
    tables: list[Table | None] = [*list_variants(settings)]
    costs = {setting: build_costs(setting, series) for setting, series in settings.items()}
    sweeps = [build_sweep_table(sweep) for sweep in find_sweeps(settings)]
    elsewhere = _list_runs([*sweeps, *costs.values()])
    adapted = {s.family for s, series in settings.items() if any(one.first.method != "zeroshot" for one in series)}
    for setting, series in settings.items():
        main, parts = choose_main(series), [one for one in series if one.is_part]
        alone = setting.family in adapted and all(one.first.method == "zeroshot" for one in series)
        if setting.dataset in VARIANTS or alone:
            continue  # the variants have their table; so has zero-shot alone beside other severities
        unseen = [one for one in series if one.first.run not in elsewhere]
        notes = [*_note_clean(setting, settings), *note_main(main, unseen)]
        tables.append(build_corruptions(setting, main, published, notes=notes))
        if parts:
            tables.append(build_corruptions(setting, with_base(parts, series), None, "parts"))
        if len(main) > 1:
            tables += [build_gains(runs, setting, main), build_measures(setting, main)]
        tables.append(costs[setting])
    tables += [*build_components(settings), *build_severities(settings), *sweeps]
    return _name_apart([table for table in tables if table is not None])


def _list_runs(tables: Iterable[Table | None]) -> set[str]:
    """The runs that numbers of these tables come from."""
    there = (table for table in tables if table is not None)
    return {run for table in there for line in table.lines for cell in line.cells for run in cell.runs}


def _note_clean(setting: Setting, settings: dict[Setting, list[Series]]) -> list[str]:
    """What zero-shot has on the clean pictures, if that was run."""
    clean = settings.get(replace(setting, severity=0, reset="domain"), []) if setting.severity else []
    found = [one.collect("clean") for one in clean if one.first.method == "zeroshot"]
    return [f"On the clean pictures zero-shot has {next(iter(found[0].values())):.2f}."] if found and found[0] else []


def _name_apart(tables: Sequence[Table]) -> list[Table]:
    """No two tables may have the same files."""
    named: list[Table] = []
    for table in tables:
        taken = {other.name for other in named}
        number = next(
            n for n in range(1, len(tables) + 1) if (table.name if n == 1 else f"{table.name}-{n}") not in taken
        )
        named.append(table if number == 1 else replace(table, name=f"{table.name}-{number}"))
    return named


def _pick_curves(settings: dict[Setting, list[Series]]) -> dict[str, list[Series]]:
    """The series of the main tables, and of the parts of LMR, under their settings."""
    found: dict[str, list[Series]] = {}
    for setting, series in settings.items():
        found.setdefault(setting.describe(), []).extend(choose_main(series))
        if parts := [one for one in series if one.is_part]:
            found.setdefault(f"{setting.describe()}, parts of LMR", []).extend(with_base(parts, series))
    return found


def _list_faults(tables: Sequence[Table]) -> list[str]:
    """Where the paper disagrees with itself, if such numbers are shown."""
    shown = " ".join(table.published for table in tables)
    return [
        f"In the paper's table {find_published(fault['table']).source} the row {fault['row']} of {fault['table']} has "
        f"the average {fault['average']}, but its columns have the mean {fault['mean_of_columns']}. {fault['note']}"
        for fault in describe_paper()["faults"]
        if find_published(fault["table"]).title in shown
    ]


def _make_folder(out: Path) -> None:
    try:
        (out / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot make the folder {str(out)!r} for the report: {error.strerror}.") from error


def _remove_old(folder: Path, kept: set[str]) -> None:
    """Delete what an earlier report left in a folder: files with our names in all of our forms, nobody else's."""
    pattern, forms = OWN[folder.name]
    for name in {path.stem for path in folder.glob("*") if pattern.fullmatch(path.stem)} - kept:
        paths = [folder / f"{name}.{form}" for form in forms]
        for path in paths if all(path.is_file() for path in paths) else ():
            path.unlink()


def _join_markdown(summary: str, tables: Sequence[Table], drawings: Sequence[Drawing], words: Sequence[str]) -> str:
    parts = ["# Benchmark report", summary, *(f"- {word}" for word in words), *map(format_markdown, tables)]
    parts += [f"![Figure {d.number}](figures/{d.name}.svg)\n\n**Figure {d.number}.** {d.caption}" for d in drawings]
    return "\n\n".join(parts) + "\n"


def show_tables(tables: Sequence[Table]) -> None:
    """Print tables; best is bold on a terminal and marked with a star elsewhere."""
    style = sys.stdout.isatty()
    for table in tables:
        print(format_terminal(table, style=style))
