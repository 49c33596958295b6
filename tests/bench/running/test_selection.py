"""Values that are chosen on the four extra corruptions, as many for every method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import lmr
from lmr.bench.plans.plan import Plan, parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.bench import BenchResult, run_bench
from lmr.bench.running.row import Row, read_rows
from lmr.bench.running.run import run_task
from lmr.bench.running.selection import list_trials, select_values
from lmr.bench.running.workers import Event
from lmr.data.corruptions import EXTRA
from lmr.report.report import describe_row
from row_maker import make_task_rows

GRID = "tent = [{ lr = 1e-3 }, { lr = 4e-3 }]\nlmr = [{ lr = 2e-3 }, { delta = 0.05 }]\n"
METHODS = ["zeroshot", "tent(lr=1e-4)", "lmr"]


def make_plan(folder: Path, grid: str = GRID, **changes: Any) -> Plan:
    (folder / "grid.toml").write_text(grid)
    table = {"methods": METHODS, "datasets": "photo-c", "corruptions": ["fog", "frost"], "images": 24, "batch_sizes": 8}
    return parse_plan("test", "", folder, table | {"select": "grid.toml"} | changes)


def answer(tasks: Sequence[Task], best: str) -> list[Row]:
    """Rows in which one candidate is better than the others."""
    rows = zip(tasks, make_task_rows(tasks), strict=True)
    metrics = [{"accuracy": 0.9 if best in task.entry.spec else 0.5} for task in tasks]
    return [
        dataclasses.replace(row, run=task.run, metrics=row.metrics | own)
        for (task, row), own in zip(rows, metrics, strict=True)
    ]


def choose(plan: Plan, best: str = "lr=0.004") -> tuple[Plan, list[Task], list[str]]:
    tried: list[Task] = []
    messages: list[str] = []

    def run(trials: Plan) -> list[Row]:
        tried.extend(list_tasks([trials]))
        return answer(tried, best)

    (chosen,) = select_values([plan], run, log=messages.append)
    return chosen, tried, messages


def test_every_method_has_as_many_values_on_other_corruptions(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    chosen, tried, messages = choose(plan)
    assert messages == []
    assert {task.domain for task in tried} == set(EXTRA)
    assert sorted(task.method for task in tried) == ["lmr"] * 12 + ["tent"] * 12
    assert [task.run for task in tried] == [task.run for task in list_tasks(list_trials([plan]))]
    tasks = list_tasks([chosen])
    assert {task.domain for task in tasks} == {"fog", "frost"}
    labels = [task.entry.label for task in tasks if task.domain == "fog"]
    assert labels == ["zero-shot", "TENT (lr=0.0001)", "TENT (lr=0.0001), selected", "LMR"]
    published, selected, same = (task.entry for task in tasks[1:4])
    assert published.selected == {}
    assert "lr=0.004" in selected.spec
    assert selected.selected["published"] == published.spec
    assert (selected.selected["values"], selected.selected["accuracy"]) == (3, pytest.approx(0.9))
    assert same.selected["published"] == same.spec  # the first of equals: the published values
    assert {task.run for task in list_tasks([plan])} < {task.run for task in tasks} | {"none"}


def test_one_choice_serves_all_parts_on_the_same_data(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, seeds=[1, 2])
    (part,) = plan.parts
    other = dataclasses.replace(part, order="dirichlet", corruptions=("snow",), images=32)
    small = dataclasses.replace(part, batch_sizes=(4,))
    _, tried, _ = choose(dataclasses.replace(plan, parts=(part, other, small)))
    assert len(tried) == 2 * 24
    assert {(task.batch_size, task.images, task.order) for task in tried} == {(8, 32, "shuffle"), (4, 24, "shuffle")}


def test_sets_without_the_extra_corruptions_keep_published_values(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, datasets=["photo", "photo-c"], corruptions="all")
    chosen, tried, messages = choose(plan)
    assert {task.dataset for task in tried} == {"photo-c"}
    assert ["selected" in task.entry.label for task in list_tasks([chosen]) if task.dataset == "photo"] == [False] * 3
    (message,) = messages
    assert "'photo'" in message


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("tent = [{ lr = 1e-3 }]\n", "no values of lmr"),
        ("tent = [{ lr = 1e-3 }]\nlmr = []\n", "same number"),
        ("tent = 3\nlmr = 4\n", "list of tables"),
        ("tent = [{ lr = 1e-3 }, { lr = 1e-3 }]\n", "twice"),
        ("tent = [{ lr = 1e-4 }]\nlmr = [{ lr = 2e-3 }]\n", "always tried"),
        (f"images = 0\n{GRID}", "positive number of images"),
        ("tent = [{ rate = 1 }]\nlmr = [{ lr = 2e-3 }]\n", "no argument 'rate'"),
        ("tent = [", "Cannot read the grid"),
    ],
)
def test_a_grid_that_is_not_fair_is_refused(tmp_path: Path, grid: str, words: str) -> None:
    with pytest.raises(lmr.LmrError, match=words):
        list_trials([make_plan(tmp_path, grid)])


class Here:
    """A worker in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *problem: object) -> None: ...

    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        return (Event("done", 0, task, row=run_task(task, self.folder)) for task in tasks)


def bench(plan: Plan, folder: Path, *sources: Path) -> BenchResult:
    workers = lambda tasks, target, seconds: Here(target)  # noqa: E731
    return run_bench(plan, folder, start_workers=workers, brief=True, sources=sources)


@pytest.mark.parametrize("sources", [(), ("earlier",)])
def test_rows_say_how_their_values_were_chosen(tmp_path: Path, sources: tuple[str, ...]) -> None:
    """Those of earlier runs too, in the same folder or taken from another."""
    grid = "tent = [{ lr = 1e-30 }]\nlmr = [{ lr = 2e-2 }]\n"  # the first changes nothing: the published values win
    plan = make_plan(tmp_path, grid, corruptions="fog", methods=["tent(lr=1e-31)", "lmr"], images=8)
    plain = make_plan(tmp_path, grid, corruptions="fog", methods=["tent(lr=1e-31)"], images=8, select=None)
    (before,) = bench(plain, tmp_path / (*sources, "runs")[0]).rows
    assert before.selected == {}
    bench(plan, tmp_path / "runs", *(tmp_path / name for name in sources))
    rows = {row.label: row for row in read_rows(tmp_path / "runs")[0]}
    tent = next(row for row in rows.values() if row.method == "tent")
    assert tent.run == before.run
    assert tent.compare() == before.compare()
    assert tent.selected["published"] == tent.spec
    assert tent.spec in describe_row(tent)["selected"]
    assert len([row for row in rows.values() if row.method == "lmr"]) == 1 + ("LMR, selected" in rows)
    assert len(read_rows(tmp_path / "runs" / "selection")[0]) == 16
    assert bench(plan, tmp_path / "runs").skipped == len(rows)
