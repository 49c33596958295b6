"""``lmr reproduce``: run a table of the paper, report it, and say whether its numbers were reproduced.

A table may have a quick form, for machines without a GPU: fewer images and corruptions and a smaller model. It shows
the published numbers beside its own and is never judged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
from lmr.report.tables import build_accuracy
from lmr.report.verdicts import Judgement, format_verdict, judge, pick_table

QUICK_PLANS = {"cifar10-c": "cifar10-c-quick"}  # published table -> the plan of its quick form


def reproduce(
    name: str, folder: str | Path = FOLDER, *, workers: int | None = None, root: str | None = None,
    prompts: Sequence[str] | None = None,
) -> list[Judgement]:  # fmt: skip
    """Run the plan of a published table, make its report and judge every row.

    Missing data raise an error that names the command to fetch them.
    """
    published, plan = _find_plan(name, False, prompts)
    outcome = run_bench(plan, folder, workers=workers, root=root)
    print(outcome.describe(), file=sys.stderr)
    report = make_report([folder], Path(folder) / "report")
    table = pick_table(published, _gather_runs(folder, outcome))
    show_tables([table] if table else [])
    judgements = judge(table, published)
    print_text(format_verdict(published, judgements))
    print_text(f"\nThe full report is in {report.page}.")
    return judgements


def reproduce_quickly(
    name: str, folder: str | Path = FOLDER, *, workers: int | None = None, root: str | None = None,
    prompts: Sequence[str] | None = None,
) -> BenchResult:  # fmt: skip
    """Run the quick form of a published table after saying what it takes, and show the published numbers beside it."""
    published, plan = _find_plan(name, True, prompts)
    print_text(_estimate(plan, folder, workers, root))
    outcome = run_bench(plan, folder, workers=workers, root=root)
    print(outcome.describe(), file=sys.stderr)
    if outcome.rows:
        report = make_report([folder], Path(folder) / "report")
        tables = [
            build_accuracy(setting, choose_main(series), published)
            for setting, series in _gather_runs(folder, outcome).items()
        ]
        show_tables([table for table in tables if table is not None])
        print_text(describe_quick_form(published, outcome.rows))
        print_text(f"\nThe full report is in {report.page}.")
    return outcome


def estimate_reproduction(
    name: str, folder: str | Path = FOLDER, *, quick: bool = False, workers: int | None = None,
    root: str | None = None, prompts: Sequence[str] | None = None,
) -> str:  # fmt: skip
    """Return the estimated time of a table, or of its quick form, on this machine; nothing is run."""
    _, plan = _find_plan(name, quick, prompts)
    return _estimate(plan, folder, workers, root, lambda words: print(f"lmr: {words}", file=sys.stderr))


def describe_quick_form(published: PublishedTable, rows: Sequence[Row]) -> str:
    """Why the quick form is not judged: what differs from the published table."""
    row, corruptions = rows[0], {row.domain for row in rows}
    theirs = [name for name in published.columns if name != AVERAGE]
    return (
        f"The quick form is not judged, as its protocol is not that of {published.title} ({published.source}). "
        f"Backbone: {name_backbone(row.backbone['name'])} (paper: {published.protocol['backbone']}). "
        f"Images: {row.images:,} of {row.dataset} (paper: {published.protocol['images']:,}). "
        f"Corruptions: {len(corruptions)} (paper: {len(theirs)})."
    )


def _find_plan(name: str, quick: bool, prompts: Sequence[str] | None) -> tuple[PublishedTable, Plan]:
    published = find_published(name)
    if quick and name not in QUICK_PLANS:
        raise LmrError(f"The table {name!r} has no quick form; these have one: {', '.join(QUICK_PLANS)}.")
    plan = QUICK_PLANS[name] if quick else name
    return published, read_plan(plan, {"prompts": list(prompts) if prompts else None})


def _estimate(
    plan: Plan, folder: str | Path, workers: int | None, root: str | None,
    say: Callable[[str], object] = lambda words: None,
) -> str:  # fmt: skip
    """Return the estimated time of the runs without a row in the folder."""
    return f"{plan.title}\n{describe_left_time(list_tasks([plan], root, say), folder, workers)}"


def _gather_runs(folder: str | Path, outcome: BenchResult) -> Settings:
    """Return the runs of a result, without others in the folder."""
    wanted = {row.run for row in outcome.rows}
    return gather(row for row in read_runs([folder]).rows if row.run in wanted)
