"""``lmr reproduce``: run a table of the paper, report it, and say whether its numbers were reproduced."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lmr.bench.plans.plan import read_plan
from lmr.bench.running.bench import run_bench
from lmr.bench.running.row import FOLDER
from lmr.report.paper.published import find_published, read_reference
from lmr.report.paper.verdicts import Judgement, format_verdict, judge, list_missed, pick_table
from lmr.report.report import make_report, show_tables
from lmr.report.runs import read_runs
from lmr.report.series import gather
from lmr.report.terminal import print_text


def reproduce(
    name: str, folder: str | Path = FOLDER, *, workers: int | None = None, root: str | None = None,
    prompts: Sequence[str] | None = None,
) -> list[Judgement]:  # fmt: skip
    """Run the plan of a published table, make its report and judge every row.

    Missing data raise an error that names the command to fetch them.
    """
    published = find_published(name)
    outcome = run_bench(
        read_plan(name, {"prompts": list(prompts) if prompts else None}), folder, workers=workers, root=root
    )
    print(outcome.describe(), file=sys.stderr)
    report = make_report([folder], Path(folder) / "report")
    wanted = {row.run for row in outcome.rows}
    table = pick_table(published, gather(row for row in read_runs([folder]).rows if row.run in wanted))
    show_tables([table] if table else [])
    judgements = judge(table, published)
    print_text(format_verdict(published, judgements))
    print_text(f"\nThe full report is in {report.page}.")
    return judgements


def add_reproduce_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the parser of the command."""
    add = parser.add_argument
    add("table", metavar="TABLE", help=f"one of: {', '.join(read_reference())}")
    add("--out", default=FOLDER, metavar="RUNS", help="where rows and samples go (default: %(default)s)")
    add("--root", metavar="DIR", help="where datasets lie (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add("--workers", type=int, metavar="N", help="processes that share the cores (default: as lmr bench has it)")
    add("--prompts", nargs="+", metavar="FILE", help="for imagenet-c-cupl: CuPL's file of sentences")


def run_reproduce(options: argparse.Namespace) -> str | None:
    """Run the command; what it returns is a complaint."""
    judgements = reproduce(
        options.table, options.out, workers=options.workers, root=options.root, prompts=options.prompts
    )
    left = list_missed(judgements)
    return f"Not reproduced: {', '.join(left)}." if left else None
