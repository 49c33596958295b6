"""``lmr reproduce``: run a table or a figure of the paper, report it, and judge the numbers of a table.

A table may have a quick form, for machines without a GPU: fewer images and corruptions and a smaller model. It shows
the published numbers beside its own and is never judged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmr.bench.inputs import find_dataset
from lmr.bench.plans.fields import FOLDER
from lmr.bench.plans.plan import Plan, read_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.bench import BenchResult, run_bench
from lmr.bench.running.row import METRICS, Row
from lmr.core.card import Role
from lmr.core.errors import LmrError
from lmr.core.registry import find_method
from lmr.report.drawing import Drawing
from lmr.report.formats import print_text, show_tables
from lmr.report.groups import Settings, choose_main, gather
from lmr.report.protocol import name_backbone
from lmr.report.published import AVERAGE, FIGURE, PublishedTable, find_published, read_paper
from lmr.report.report import make_report
from lmr.report.runs import read_runs
from lmr.report.table import Table
from lmr.report.tables import lay_accuracy
from lmr.report.verdicts import Judgement, RowVerdict, format_verdict, judge, pick_table

QUICK_PLANS = {"cifar10-c": "cifar10-c-quick"}  # published table -> the plan of its quick form


@dataclass(frozen=True)
class Reproduction:
    """A published table, as a whole or in its quick form, or a figure; and where and with what to run it."""

    table: str
    folder: str | Path = FOLDER
    quick: bool = False
    workers: int | None = None
    root: str | None = None
    prompts: Sequence[str] | None = None
    model: str | None = None
    device: str | None = None
    dtype: str | None = None

    @property
    def figure(self) -> str | None:
        """The number of the figure, such as 1a; None for a table."""
        number = self.table.removeprefix(FIGURE)
        return number if number != self.table and number in read_paper()["figures"] else None

    def read_plan(self) -> Plan:
        """Return the plan that runs it; an error if there is no such table or figure, or no quick form of it."""
        if self.figure is None:
            find_published(self.table)
        if self.quick and self.table not in QUICK_PLANS:
            raise LmrError(f"The table {self.table!r} has no quick form; these have one: {', '.join(QUICK_PLANS)}.")
        name = QUICK_PLANS[self.table] if self.quick else self.table
        name = name if self.figure is None else read_paper()["figures"][self.figure]["plan"]
        prompts = list(self.prompts) if self.prompts else None
        return read_plan(
            name, {"prompts": prompts, "backbones": self.model, "device": self.device, "dtype": self.dtype}
        )

    def run(self, plan: Plan) -> BenchResult:
        """Run a plan; missing data raise an error that names the command to fetch them."""
        return run_bench(plan, self.folder, workers=self.workers, root=self.root)

    def run_whole(self) -> BenchResult:
        """Run the whole plan and say what became of it."""
        result = self.run(self.read_plan())
        print(result.describe(), file=sys.stderr)
        return result


def reproduce(job: Reproduction) -> list[Judgement]:
    """Run a published table, make its report and judge every row."""
    published = find_published(job.table)
    print(f"lmr: {describe_prospects(job, published)}", file=sys.stderr)
    check_model(job)
    result = job.run_whole()
    table = pick_table(published, _gather_runs(job, result))
    judgements = judge(table, published)
    _report(job, [table], format_verdict(published, judgements))
    return judgements


def reproduce_quickly(job: Reproduction) -> BenchResult:
    """Run the quick form of a table; show the published numbers beside its own."""
    published, result = find_published(job.table), job.run_whole()
    if result.rows:
        settings = _gather_runs(job, result).items()
        tables = [lay_accuracy(setting, choose_main(groups), published).build() for setting, groups in settings]
        _report(job, tables, describe_quick_form(published, result.rows))
    return result


def reproduce_figure(job: Reproduction) -> BenchResult:
    """Run what a figure of the paper needs, and draw it; the paper prints few numbers of figures, so none is judged."""
    check_model(job)
    result = job.run_whole()
    if result.rows:
        drawings = _report(job, [], "")
        files = [f"{job.folder}/report/figures/{own.name}.png" for own in drawings if own.number == job.figure]
        stated = read_paper()["figures"][str(job.figure)].get("stated")
        print_text(f"Figure {job.figure} is {', '.join(files)}." if files else f"Figure {job.figure} lacks runs.")
        print_text(f"The paper states of it: {stated}." if stated else "The paper states no number of it.")
    return result


def describe_prospects(job: Reproduction, published: PublishedTable) -> str:
    """Return what the verdict on a table can be with these files and this model, before anything runs."""
    expected = gather(_foresee(task) for task in list_tasks([job.read_plan()], job.root))
    judgements = judge(pick_table(published, expected), published)
    barred = {judgement.row: judgement.reason for judgement in judgements if judgement.verdict is RowVerdict.DIFFERENT}
    if len(barred) < len(judgements):
        others = f" {', '.join(barred)}: only 'not comparable', {next(iter(barred.values()))}." if barred else ""
        return f"{len(judgements) - len(barred)} of {len(judgements)} rows will be judged.{others}"
    return (
        f"Every row will be 'not comparable', whatever the numbers are: {next(iter(barred.values()))}. The runs begin "
        "all the same; stop them with Ctrl-C."
    )


def _foresee(task: Task) -> Row:
    """Return the row that a task will have, with made-up numbers."""
    dataset = find_dataset(task.dataset, task.root)
    return Row(
        run=task.run, method=task.method, spec=task.entry.spec, label=task.entry.label,
        backbone={"name": task.backbone, "weights": task.weights, "dtype": task.dtype}, dataset=task.dataset,
        data_digest=task.data_digest, domain=task.domain, severity=task.severity, prompts=task.prompt_facts,
        batch_size=task.batch_size, seed=task.seed, order=task.order_facts, reset=task.reset, images=task.images,
        emit=find_method(task.method).emission, metrics=dict.fromkeys(METRICS, 0.5), curve={}, versions={},
        command=task.command, finished="", protocol=dataset.describe_part(task.domains),
    )  # fmt: skip


def check_model(job: Reproduction) -> None:
    """Run the frozen model on one domain first; raise LmrError if it is no better than chance."""
    plan = job.read_plan()
    tasks = list_tasks([plan], job.root)
    first = next((task for task in tasks if find_method(task.method).card.role is Role.BASELINE), None)
    if first is None:
        return
    part = next(part for part in plan.parts if first.dataset in part.datasets and first.entry in part.methods)
    alone = replace(
        part, methods=(first.entry,), datasets=(first.dataset,), corruptions=first.domains, seeds=(first.seed,),
        severities=(first.severity or 5,), batch_sizes=(first.batch_size,), backbones=(first.backbone,),
    )  # fmt: skip
    for row in job.run(replace(plan, parts=(alone,))).rows:
        share, classes = row.metrics["accuracy"] or 0.0, int(row.protocol["classes"])
        noise = (1 / classes * (1 - 1 / classes) / row.images) ** 0.5
        if share <= 1 / classes + 3 * noise:
            raise LmrError(
                f"Stopped: the frozen model {row.backbone['name']!r} answers {100 * share:.2f} % of {row.images:,} "
                f"images of {row.dataset}, {row.domain}, correctly, which is chance for {classes} classes. The model, "
                "the class names or the labels of the images are not those of the paper; check them with "
                f"`lmr doctor {row.backbone['name']}` and `lmr fetch {row.dataset} --check FOLDER`."
            )


def _report(job: Reproduction, tables: Sequence[Table | None], conclusion: str) -> list[Drawing]:
    """Make the report of a folder, print some of its tables and a conclusion, and return its figures."""
    report = make_report([job.folder], Path(job.folder) / "report")
    show_tables([table for table in tables if table is not None])
    print_text(f"{conclusion}\n\nThe full report is in {report.page}.")
    return report.drawings


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
    wanted = {row.run for row in result.rows}
    return gather(row for row in read_runs([job.folder]).rows if row.run in wanted)
