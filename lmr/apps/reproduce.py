"""``lmr reproduce``: run a table of the paper, report it, and say whether its numbers were reproduced."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lmr.bench.plans.choices import FOLDER
from lmr.bench.plans.plan import read_plan
from lmr.bench.running.bench import run_bench
from lmr.report.paper.paper_tables import find_published
from lmr.report.paper.verdicts import Judgement, format_verdict, judge, pick_table
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
