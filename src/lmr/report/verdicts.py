"""Verdicts on published numbers: which rows the runs reproduce, within stated tolerances.

Tolerances, in points of accuracy. A method that learns from the stream depends on the order of the images, which the
paper does not print, and on the last digits of the arithmetic; where several papers run the same baseline with the same
code, their averages differ by some tenths of a point and single corruptions by about twice as much. Hence 0.5 for an
average and 1.0 for a cell. Zero-shot learns nothing and depends on neither: papers agree on it to 0.03 on average and
0.12 in a cell, so the tolerances are 0.1 and 0.25. Times and memory depend on the machine and are not judged; counts of
trained parameters are, to 5 %, since implementations differ in which norms they count.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmr.report.groups import Settings, choose_main
from lmr.report.protocol import match_corruption_table
from lmr.report.published import AVERAGE, COMPONENTS, PublishedTable, read_paper, read_tables
from lmr.report.table import Layout, Line, Table
from lmr.report.tables import lay_accuracy, lay_components, lay_costs, lay_variants
from lmr.report.traits import LineKind

CELL, MEAN = 1.0, 0.5  # points of accuracy
CELL_ZERO_SHOT, MEAN_ZERO_SHOT = 0.25, 0.1
COUNT = 0.05  # share
NOT_JUDGED = ("ms_per_image", "peak_mb")


class RowVerdict(enum.Enum):
    """The verdict on one published row; the values are phrases for people."""

    REPRODUCED = "reproduced"
    COUNTED = "trained parameters agree"  # the other numbers of the row are not judged
    MISSED = "not reproduced"
    DIFFERENT = "not comparable"  # it was run under another protocol
    ABSENT = "not run"

    @property
    def good(self) -> bool:
        """True if everything that is judged agrees."""
        return self in (RowVerdict.REPRODUCED, RowVerdict.COUNTED)


@dataclass(frozen=True)
class Judgement:
    """The verdict on one published row, and why."""

    row: str
    verdict: RowVerdict
    reason: str


def judge(table: Table | None, published: PublishedTable) -> list[Judgement]:
    """Return a verdict on every published row; one under another protocol is not judged, and its reason says why."""
    plain = [line for line in table.lines if not line.watched] if table else []
    lines = {row.printed: line for line in plain if (row := published.find(line.spec))}
    found = []
    for row in published.rows:
        line = lines.get(row.printed)
        if table is None or line is None:
            found.append(Judgement(row.printed, RowVerdict.ABSENT, "the runs contain no such line"))
        elif line.differs:
            found.append(Judgement(row.printed, RowVerdict.DIFFERENT, "; ".join(line.differs)))
        else:
            found.append(_judge_line(row.printed, line, table, published))
    return found


def list_missed(judgements: Sequence[Judgement]) -> list[str]:
    """Return the published rows that were not reproduced, or could not be judged."""
    return [judgement.row for judgement in judgements if not judgement.verdict.good]


def _judge_line(name: str, line: Line, table: Table, published: PublishedTable) -> Judgement:
    faulty = {
        column
        for fault in read_paper()["paper"]["faults"]
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
        allowed = _find_tolerance(column.key, published.name, line.kind, cell.published)
        count += 1
        largest = max(largest, abs(cell.difference))
        if abs(cell.difference) > allowed + 1e-9:
            outside.append(f"{column.key} {cell.difference:+.2f} (allowed {allowed:.2f})")
    if missing:
        return Judgement(name, RowVerdict.ABSENT, f"no numbers for {', '.join(missing)}")
    if outside:
        return Judgement(name, RowVerdict.MISSED, ", ".join(outside))
    if not count:
        return Judgement(name, RowVerdict.DIFFERENT, "the row contains nothing that can be judged")
    if _is_half_judged(published):
        return Judgement(name, RowVerdict.COUNTED, "time and memory are not judged")
    return Judgement(name, RowVerdict.REPRODUCED, f"{count} numbers, largest difference {largest:.2f}")


def _is_half_judged(published: PublishedTable) -> bool:
    """Return True if a table has columns that depend on the machine."""
    return any(column in NOT_JUDGED for column in published.columns)


def _find_tolerance(column: str, table: str, line: LineKind, value: float) -> float:
    if column == "trainable":
        return COUNT * value
    plain = line is LineKind.BASELINE
    if column == AVERAGE or table == COMPONENTS:  # whose cells are means over 15 corruptions
        return MEAN_ZERO_SHOT if plain else MEAN
    return CELL_ZERO_SHOT if plain else CELL


def pick_table(published: PublishedTable, settings: Settings) -> Table | None:
    """Return the table of these runs to compare with the published one: of several, that with most comparable lines."""
    tables = [layout.build() for layout in _lay_alike(published, settings)]
    return max(tables, key=lambda table: sum(not line.differs for line in table.lines), default=None)


def _lay_alike(published: PublishedTable, settings: Settings) -> Iterator[Layout]:
    if published.name == "imagenet-variants":
        yield from lay_variants(settings)
    elif published.name == COMPONENTS:
        yield from lay_components(settings)
    for setting, groups in settings.items():
        if not setting.severity:
            continue
        if published.name == "efficiency" and setting.dataset == published.protocol["dataset"]:
            yield from lay_costs(setting, groups)
        elif match_corruption_table(setting.dataset, setting.backbone, setting.prompts) == published:
            yield lay_accuracy(setting, choose_main(groups), published)


def list_verdicts(settings: Settings) -> list[str]:
    """Return the verdict on every published table that the runs are about, as ``format_verdict`` has it."""
    judged = {table.name: (table, judge(pick_table(table, settings), table)) for table in read_tables().values()}
    return [
        format_verdict(table, judgements)
        for table, judgements in judged.values()
        if any(judgement.verdict is not RowVerdict.ABSENT for judgement in judgements)
    ]


def format_verdict(published: PublishedTable, judgements: Sequence[Judgement]) -> str:
    """Return the verdicts in lines, with the tolerances behind them."""
    width = max(len(judgement.row) for judgement in judgements)
    wide = max(len(judgement.verdict.value) for judgement in judgements)
    lines = [f"{j.row:{width}}  {j.verdict.value:{wide}}  {j.reason}" for j in judgements]
    rows = f"{sum(judgement.verdict.good for judgement in judgements)} of {len(judgements)} rows"
    what = f"{rows} reproduced"
    if _is_half_judged(published):
        what = f"the trained parameters of {rows} agree; time and memory are not judged"
    head = f"{published.title} ({published.source}): {what}."
    rule = (
        f"Tolerance: {MEAN} points for an average, {CELL} for a cell; zero-shot {MEAN_ZERO_SHOT} and {CELL_ZERO_SHOT}; "
        f"trained parameters {100 * COUNT:.0f} %; times and memory are not judged."
    )
    return "\n".join([head, "", *lines, "", rule])
