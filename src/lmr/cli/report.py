"""``lmr report``: tables, figures and a page of finished runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from lmr.bench.plans.choices import FOLDER
from lmr.core.extras import require

DESCRIPTION = """\
Make tables (terminal, Markdown, LaTeX, csv), the paper's figures (PNG, SVG) and one self-contained page from the runs
of lmr bench. Where a published value exists it is shown next to ours, with any difference in the protocol."""

EXAMPLES = """\
examples:
  lmr report
  lmr report my-runs more-runs --out report
  lmr report my-runs --pack results/mine      keep the runs in a repository; lmr report results/mine reads them"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr report``."""
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        default=[FOLDER],
        metavar="RUNS",
        help=f"folders that lmr bench or --pack wrote (default: {FOLDER})",
    )
    add("--out", metavar="FOLDER", help="where the report is written (default: RUNS/report of the first folder)")
    add("--beside", metavar="TABLE", help="also show the values of this published table next to runs on other data, "
        "with the difference stated")  # fmt: skip
    add("--pack", metavar="FOLDER", help="instead of a report, add the rows and the packed predictions of all runs to "
        "this folder, a few KB a run: for a repository, for lmr report, for lmr bench --from")  # fmt: skip
    add("--no-figures", dest="figures", action="store_false", help="make only the tables and the page")


def run(options: argparse.Namespace) -> None:
    """Make the report, show the tables and print where everything is; or pack the runs."""
    require("pandas", "bench", "A report")
    if options.pack is not None:
        _pack(options)
        return
    from lmr.report.formats import print_text, show_tables
    from lmr.report.report import make_report

    out = Path(options.out) if options.out else Path(options.runs[0]) / "report"
    report = make_report(options.runs, out, options.beside, options.figures)
    show_tables(report.tables)
    for note in report.notes:
        print_text(f"- {note}")
    print_text(
        f"\nOpen {report.page} (tables also as .md, .tex, .csv in {out / 'tables'}; figures in {out / 'figures'})."
    )


def _pack(options: argparse.Namespace) -> None:
    from lmr.bench.running.pack import pack_runs
    from lmr.report.formats import print_text

    result = pack_runs([Path(folder) for folder in options.runs], Path(options.pack))
    for note in result.notes:
        print_text(f"- {note}")
    size = f"{result.size / 1e6:.2f} MB, {result.size / 1000 / result.runs:.1f} KB a run"
    print_text(f"{result.added} runs were added to {options.pack}, which has {result.runs} ({size}).")
