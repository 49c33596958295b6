"""``lmr reproduce``: run a table of the paper, report it, and say whether the published numbers came out again.

Tolerances, in points of accuracy. A method that learns from the stream depends on the order of the images, which the
paper does not print, and on the last digits of the arithmetic; where several papers run the same baseline with the same
code, their averages differ by some tenths of a point and single corruptions by about twice as much. Hence 0.5 for an
average and 1.0 for a cell. Zero-shot learns nothing, so that neither matters: papers agree on it to 0.03 on average and
0.12 in a cell, and 0.1 and 0.25 are asked for. Times and memory are the machine's and are not judged; counts of trained
numbers are, to 5 %, since it differs which norms are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmr.bench.plans.choices import FOLDER
from lmr.bench.plans.plan import read_plan
from lmr.bench.running.bench import run_bench
from lmr.report.paper.published import (
    AVERAGE,
    PublishedTable,
    describe_paper,
    find_published,
    match_corruption_table,
)
from lmr.report.report import make_report, show_tables
from lmr.report.series import Series, Setting, gather, read_runs
from lmr.report.tables.by_dataset import build_components, build_variants
from lmr.report.tables.corruptions import build_corruptions, build_costs, choose_main
from lmr.report.tables.table import Line, Table

CELL, MEAN = 1.0, 0.5  # points of accuracy
CELL_ZERO_SHOT, MEAN_ZERO_SHOT = 0.25, 0.1
COUNT = 0.05  # share
NOT_JUDGED = ("ms_per_image", "peak_mb")
REPRODUCED, MISSED, DIFFERENT, ABSENT = "reproduced", "not reproduced", "not comparable", "not run"
COUNTED = "trained numbers agree"  # of a row whose other numbers are not judged


@dataclass(frozen=True)
class Judgement:
    """The verdict on one published row, and why."""

    row: str
    verdict: str
    reason: str


def judge(table: Table | None, published: PublishedTable) -> list[Judgement]:
    """A verdict on every published row. A row under another protocol is not judged: the reason says what differs."""
    lines = {_find_row(line, published): line for line in table.lines} if table else {}
    found = []
    for row in published.rows:
        line = lines.get(row.printed)
        if table is None or line is None:
            found.append(Judgement(row.printed, ABSENT, "there is no such line in the runs"))
        elif line.differs:
            found.append(Judgement(row.printed, DIFFERENT, "; ".join(line.differs)))
        else:
            found.append(_judge_line(row.printed, line, table, published))
    return found


def _find_row(line: Line, published: PublishedTable) -> str | None:
    row = published.find(dict(line.protocol).get("method", ""))
    return row.printed if row else None


def _judge_line(name: str, line: Line, table: Table, published: PublishedTable) -> Judgement:
    plain = dict(line.protocol).get("method", "").startswith("zeroshot")
    faulty = {
        column
        for fault in describe_paper()["faults"]
        if (fault["table"], fault["row"]) == (published.name, name)
        for column in fault["columns"]
    }
    outside, missing, largest, count = [], [], 0.0, 0
    for cell, column in zip(line.cells, table.columns, strict=True):
        if column.key in NOT_JUDGED or column.key in faulty or cell.published is None:
            continue
        if cell.difference is None:
            missing.append(column.key)
            continue
        allowed = _find_tolerance(column.key, published, plain, cell.published)
        count += 1
        largest = max(largest, abs(cell.difference))
        if abs(cell.difference) > allowed + 1e-9:
            outside.append(f"{column.key} {cell.difference:+.2f} (allowed {allowed:.2f})")
    if missing:
        return Judgement(name, ABSENT, f"no numbers for {', '.join(missing)}")
    if outside:
        return Judgement(name, MISSED, ", ".join(outside))
    if not count:
        return Judgement(name, DIFFERENT, "nothing in it can be judged")
    if _is_half_judged(published):
        return Judgement(name, COUNTED, "time and memory are not judged")
    return Judgement(name, REPRODUCED, f"{count} numbers, largest difference {largest:.2f}")


def _is_half_judged(published: PublishedTable) -> bool:
    """Whether a table has columns that are the machine's."""
    return any(column in NOT_JUDGED for column in published.columns)


def _find_tolerance(column: str, published: PublishedTable, plain: bool, value: float) -> float:
    if column == "trainable":
        return COUNT * value
    mean = column == AVERAGE or published.name == "ablation-components"  # its cells are means over 15 corruptions
    return (MEAN_ZERO_SHOT if plain else MEAN) if mean else (CELL_ZERO_SHOT if plain else CELL)


def pick_table(published: PublishedTable, settings: dict[Setting, list[Series]]) -> Table | None:
    """The table of these runs that the published one is held against."""
    if published.name == "imagenet-variants":
        return build_variants(settings)
    if published.name == "ablation-components":
        return next((table for table in build_components(settings) if table is not None), None)
    for setting, series in settings.items():
        if not setting.severity:
            continue
        if published.name == "efficiency":
            if setting.dataset == published.protocol["dataset"] and (table := build_costs(setting, series)):
                return table
        elif match_corruption_table(setting.dataset, setting.backbone, setting.prompts) == published:
            return build_corruptions(setting, choose_main(series), published)
    return None


def format_verdict(published: PublishedTable, judgements: Sequence[Judgement]) -> str:
    """The verdict in lines, with the tolerance it was reached with."""
    width = max(len(judgement.row) for judgement in judgements)
    words = max(len(judgement.verdict) for judgement in judgements)
    lines = [f"{j.row:{width}}  {j.verdict:{words}}  {j.reason}" for j in judgements]
    right = sum(judgement.verdict in (REPRODUCED, COUNTED) for judgement in judgements)
    rows = f"{right} of {len(judgements)} rows"
    what = f"{rows} reproduced"
    if _is_half_judged(published):
        what = f"the trained numbers of {rows} agree; time and memory are not judged"
    head = f"{published.title} ({published.source}): {what}."
    rule = (
        f"Tolerance: {MEAN} points for an average, {CELL} for a cell; zero-shot {MEAN_ZERO_SHOT} and {CELL_ZERO_SHOT}; "
        f"trained numbers {100 * COUNT:.0f} %; times and memory are not judged."
    )
    return "\n".join([head, "", *lines, "", rule])


def reproduce(
    name: str, folder: str | Path = FOLDER, *, workers: int | None = None, root: str | None = None,
    prompts: Sequence[str] | None = None,
) -> list[Judgement]:  # fmt: skip
    """Run the plan of a published table, make its report and judge it; missing data raise a sentence that says how to
    get them.
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
    print(format_verdict(published, judgements))
    print(f"\nEverything is in {report.page}.")
    return judgements


def list_missed(judgements: Sequence[Judgement]) -> list[str]:
    """The published rows that did not come out again, or could not be judged."""
    return [judgement.row for judgement in judgements if judgement.verdict not in (REPRODUCED, COUNTED)]
