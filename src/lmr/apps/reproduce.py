"""``lmr reproduce``: run a table of the paper, report it, and judge whether its numbers were reproduced.

A table may have a quick form, for machines without a GPU: fewer images and corruptions and a smaller model. It shows
the published numbers beside its own and is never judged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmr.bench.plans.choices import FOLDER
from lmr.bench.plans.plan import Plan, read_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running.bench import BenchResult, run_bench
from lmr.bench.running.estimate import describe_left_time
from lmr.bench.running.row import Row
from lmr.core.errors import LmrError
from lmr.report.formats import print_text, show_tables
from lmr.report.groups import Settings, gather
from lmr.report.protocol import name_backbone
from lmr.report.published import AVERAGE, PublishedTable, find_published
from lmr.report.report import make_report
from lmr.report.runs import read_runs
from lmr.report.selection import choose_main
from lmr.report.table import Table
from lmr.report.tables import build_accuracy
from lmr.report.verdicts import Judgement, format_verdict, judge, pick_table

QUICK_PLANS = {"cifar10-c": "cifar10-c-quick"}  # published table -> the plan of its quick form


@dataclass(frozen=True)
class Reproduction:
    """A published table to run, as a whole or in its quick form, and where."""

    table: str
    folder: str | Path = FOLDER
    quick: bool = False
    workers: int | None = None
    root: str | None = None
    prompts: Sequence[str] | None = None

    def read_plan(self) -> Plan:
        """Return the plan that runs the table; an error if there is no such table, or no quick form of it."""
        find_published(self.table)
        if self.quick and self.table not in QUICK_PLANS:
            raise LmrError(f"The table {self.table!r} has no quick form; these have one: {', '.join(QUICK_PLANS)}.")
        name = QUICK_PLANS[self.table] if self.quick else self.table
        return read_plan(name, {"prompts": list(self.prompts) if self.prompts else None})

    def estimate(self, log: Callable[[str], object] = lambda message: None) -> str:
        """Return how long the runs without a row in the folder would take on this machine; nothing is run."""
        plan = self.read_plan()
        return f"{plan.title}\n{describe_left_time(list_tasks([plan], self.root, log), self.folder, self.workers)}"

    def run(self) -> BenchResult:
        """Run the plan; missing data raise an error that names the command to fetch them."""
        result = run_bench(self.read_plan(), self.folder, workers=self.workers, root=self.root)
        print(result.describe(), file=sys.stderr)
        return result


def reproduce(job: Reproduction) -> list[Judgement]:
    """Run a published table, make its report and judge every row."""
    published, result = find_published(job.table), job.run()
    table = pick_table(published, _gather_runs(job, result))
    judgements = judge(table, published)
    _report(job, [table], format_verdict(published, judgements))
    return judgements


def reproduce_quickly(job: Reproduction) -> BenchResult:
    """Run the quick form of a table after printing how long it takes; show the published numbers beside its own."""
    print_text(job.estimate())
    published, result = find_published(job.table), job.run()
    if result.rows:
        settings = _gather_runs(job, result).items()
        tables = [build_accuracy(setting, choose_main(groups), published) for setting, groups in settings]
        _report(job, tables, describe_quick_form(published, result.rows))
    return result


def _report(job: Reproduction, tables: Sequence[Table | None], conclusion: str) -> None:
    """Make the report of a folder, then print some of its tables and a conclusion."""
    report = make_report([job.folder], Path(job.folder) / "report")
    show_tables([table for table in tables if table is not None])
    print_text(f"{conclusion}\n\nThe full report is in {report.page}.")


def describe_quick_form(published: PublishedTable, rows: Sequence[Row]) -> str:
    """Return why the quick form is not judged: where it differs from the published table."""
    row, corruptions = rows[0], {row.domain for row in rows}
    theirs = [name for name in published.columns if name != AVERAGE]
    return (
        f"The quick form is not judged, as its protocol is not that of {published.title} ({published.source}). "
        f"Backbone: {name_backbone(row.backbone['name'])} (paper: {published.protocol['backbone']}). "
        f"Images: {row.images:,} of {row.dataset} (paper: {published.protocol['images']:,}). "
        f"Corruptions: {len(corruptions)} (paper: {len(theirs)})."
    )


def _gather_runs(job: Reproduction, result: BenchResult) -> Settings:
    """Return the runs of a result, without others in the folder."""
    wanted = {row.run for row in result.rows}
    return gather(row for row in read_runs([job.folder]).rows if row.run in wanted)
