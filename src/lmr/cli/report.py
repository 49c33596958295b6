"""``lmr report``: tables, figures and a page of finished runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from lmr.bench.plans.fields import FOLDER
from lmr.core.extras import require

STORED = Path(__file__).parents[3] / "results" / "leaderboard"  # in a copy of the repository

DESCRIPTION = """\
Make tables (terminal, Markdown, LaTeX, CSV), the paper's figures (PNG, SVG) and one self-contained page from the runs
of lmr bench. Where a published value exists, it is shown next to the measured one, with any difference in
the protocol."""

EXAMPLES = """\
examples:
  lmr report
  lmr report my-runs more-runs --out report
  lmr report --leaderboard                    all methods on all kinds of streams
  lmr report --reference tent                 intervals against TENT
  lmr report my-runs --answers answers.parquet     every answer to every image, for pandas
  lmr report my-runs --pack results/mine      keep the runs in a repository; lmr report results/mine reads them"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr report``."""
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUNS", help=f"folders that lmr bench or --pack wrote (default: {FOLDER}; with "
        "--leaderboard in a copy of the repository also its stored runs)")  # fmt: skip
    add("--leaderboard", action="store_true", help="instead of the tables of each dataset, all methods against all "
        "kinds of streams, with gains, worst case, calibration, cost and state")  # fmt: skip
    add("--reference", metavar="METHOD", help="the method that differences and their intervals refer to, such as tent "
        'or "lmr(bc=False)" (default: ours)')  # fmt: skip
    add("--out", metavar="FOLDER", help="where the report is written (default: RUNS/report of the first folder)")
    add("--answers", metavar="FILE", help="instead of a report, write the answers of all runs, a line for each image "
        "of each run, to FILE.parquet (needs pip install 'lmr[parquet]') or FILE.csv")  # fmt: skip
    add("--pack", metavar="FOLDER", help="instead of a report, add the rows and the packed predictions of all runs to "
        "this folder, a few KB per run; lmr report and lmr bench --from read it")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Make the report, show the tables and print where everything is; or pack the runs."""
    require("pandas", "bench", "A report")
    if options.pack is not None:
        _pack(options)
        return
    if options.answers is not None:
        _write_answers(options)
        return
    from lmr.report.formats import print_text, show_tables
    from lmr.report.report import make_leaderboard, make_report

    folders = options.runs or _choose_folders(options.leaderboard)
    out = Path(options.out) if options.out else Path(folders[0]) / "report"
    if options.leaderboard:
        report = make_leaderboard(folders, out, options.reference)
    else:
        report = make_report(folders, out, reference=options.reference)
    show_tables(report.tables)
    for verdict in report.verdicts:
        print_text(f"{verdict}\n")
    for note in report.notes:
        print_text(f"- {note}")
    figures = f"; figures in {out / 'figures'}" if report.drawings else ""
    print_text(f"\nOpen {report.page} (tables also in {out / 'tables.csv'} and {out / 'tables'}{figures}).")


def _choose_folders(leaderboard: bool) -> list[str]:
    """Return the folders of runs where none is given: with the leaderboard, its stored runs after the user's own."""
    stored = [str(STORED)] if leaderboard and STORED.is_dir() else []
    return stored if stored and not Path(FOLDER).exists() else [FOLDER, *stored]


def _write_answers(options: argparse.Namespace) -> None:
    from lmr.report.formats import print_text
    from lmr.report.runs import read_runs, write_answers

    runs = read_runs(options.runs or [FOLDER])
    count = write_answers(runs, Path(options.answers))
    for note in runs.notes:
        print_text(f"- {note}")
    print_text(f"{count:,} answers of {len(runs.rows)} runs are in {options.answers}.")


def _pack(options: argparse.Namespace) -> None:
    from lmr.bench.running.pack import pack_runs
    from lmr.report.formats import print_text

    result = pack_runs([Path(folder) for folder in options.runs or [FOLDER]], Path(options.pack))
    for note in result.notes:
        print_text(f"- {note}")
    print_text(f"{result.added} runs were added to {options.pack}, which has {result.runs}.")
