from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import list_tasks
from lmr.bench.running.row import Row
from lmr.bench.running.view import View

pytestmark = pytest.mark.usefixtures("tiny_models")
TABLE = {"methods": ["zeroshot", "lmr"], "datasets": "photo-c", "corruptions": ["fog", "snow"], "images": 100}


def show(screen: io.StringIO) -> str:
    names = [field.name for field in dataclasses.fields(Row) if field.default_factory is dataclasses.MISSING]
    row = Row(**dict.fromkeys(names, "") | {"metrics": {"accuracy": 0.5}})  # type: ignore[arg-type]
    tasks = list_tasks([parse_plan("test", "", Path(), TABLE)])
    view = View(tasks, finished=1, screen=screen)
    view.advance(tasks[0], 50)
    assert view.progress.tasks[0].completed == 50
    view.finish(tasks[0], row)
    view.log("something is odd")
    view.fail(tasks[1], "no memory")
    assert view.progress.tasks[0].completed == 200
    view.close()
    return screen.getvalue()


def test_lines_where_there_is_no_terminal() -> None:
    shown = show(io.StringIO())
    done, word, failed = shown.splitlines()
    assert done.startswith("[2/5] ")
    assert "50.0 %" in done
    assert word == "lmr: something is odd"
    assert failed.startswith("[3/5] ")
    assert "failed: no memory" in failed
    assert "\x1b" not in shown
