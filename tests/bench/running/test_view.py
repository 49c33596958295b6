from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest

from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.row import Row
from lmr.bench.running.view import Clock, View

pytestmark = pytest.mark.usefixtures("tiny_models")


def list_texts(view: View) -> list[str]:
    return [task.description for task in view.progress.tasks]


def make_tasks() -> list[Task]:
    table = {
        "methods": ["zeroshot", "lmr"],
        "datasets": "photo-c",
        "backbones": "photo",
        "corruptions": ["fog", "snow"],
        "images": 100,
    }
    return list_tasks([parse_plan("test", "", Path(), table)])


def find(tasks: list[Task], method: str, domain: str) -> Task:
    return next(task for task in tasks if (task.method, task.domain) == (method, domain))


def test_time_left_follows_the_speed_of_each_method() -> None:
    tasks = make_tasks()
    clock = Clock(tasks, workers=1)
    assert clock.estimate() is None
    fast, slow = find(tasks, "zeroshot", "fog"), find(tasks, "lmr", "fog")
    clock.advance(fast, 0, 10.0)
    clock.advance(fast, 50, 15.0)  # 0.1 s for an image
    assert clock.estimate() == pytest.approx(0.1 * (50 + 100 + 200))
    clock.advance(slow, 20, 15.0)  # was at 20 when it began: an earlier try
    clock.advance(slow, 40, 35.0)  # 1 s for an image
    assert clock.estimate() == pytest.approx(0.1 * (50 + 100) + 1.0 * (60 + 100))
    clock.end(slow)
    assert clock.estimate() == pytest.approx(0.1 * (50 + 100) + 1.0 * 100)
    several = Clock(tasks, workers=4)
    several.advance(slow, 0, 0.0)
    several.advance(slow, 1, 1.0)
    assert several.estimate() == pytest.approx(100)  # four workers cannot share one run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(screen: io.StringIO, row: Row) -> list[Task]:
    tasks = make_tasks()
    view = View(tasks, finished=1, workers=1, screen=screen)
    view.advance(0, tasks[0], 0)
    view.advance(0, tasks[0], 50)
    view.finish(0, tasks[0], row)
    view.log("something is odd")
    view.fail(0, tasks[1], "no memory")
    view.close()
    return tasks


def make_row() -> Row:
    names = [field.name for field in dataclasses.fields(Row) if field.default_factory is dataclasses.MISSING]
    return Row(**dict.fromkeys(names, "") | {"metrics": {"accuracy": 0.5}})  # type: ignore[arg-type]


def test_lines_where_there_is_no_terminal() -> None:
    screen = io.StringIO()
    tasks = show(screen, make_row())
    done, word, failed = screen.getvalue().splitlines()
    assert done.startswith("[2/5] ")
    assert "50.0 %" in done
    assert "left)" in done
    assert word == "lmr: something is odd"
    assert failed.startswith("[3/5] ")
    assert "failed: no memory" in failed
    assert tasks[1].entry.label in failed
    assert "\x1b" not in screen.getvalue()


def test_live_view_ends_with_the_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    show(screen, make_row())
    lines = re.split(r"\n|\x1b\[2K", screen.getvalue())
    assert [line[:5] for line in lines if line.startswith(("[", "lmr"))] == ["[2/5]", "lmr: ", "[3/5]"]
    assert screen.getvalue().endswith("\x1b[2K")  # the bars are removed
    assert "of 5 runs, 1 failed" in screen.getvalue()


def test_bar_of_a_run_that_lost_its_worker_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    tasks = make_tasks()
    view = View(tasks, 0, 2, Terminal(), describe_place=lambda worker: f"node{worker}")
    view.advance(0, tasks[0], 50)
    view.advance(1, tasks[1], 50)
    view.log("A run starts again from its checkpoint.", tasks[0])
    assert [text for text in list_texts(view) if "node0" in text] == []
    view.advance(0, tasks[2], 10)  # the member that came in its place does something else
    view.advance(2, tasks[1], 20)  # and this one was taken over without a message
    assert sorted(text.split()[0] for text in list_texts(view)[1:]) == ["node0", "node2"]
    view.fail(-1, tasks[3], "No node can run it.")  # nobody's failure: the bars stay
    assert len(list_texts(view)) == 3
    view.close()
