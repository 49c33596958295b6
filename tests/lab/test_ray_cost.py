"""What Ray adds to a bench: the window in which all workers are busy, and the command on two local nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab import ray_cost
from lab.ray_cost import Overhead, TimedWorkers, Turn, main
from lmr.bench.plans.plan import parse_plan
from lmr.bench.plans.task import Task, list_tasks
from lmr.bench.running.workers import Event

PLAN = {
    "methods": ["zeroshot"],
    "datasets": "photo-c",
    "backbones": "photo",
    "corruptions": ["fog", "snow", "frost", "contrast", "pixelate", "brightness"],
    "images": 100,
}


def write_plan(folder: Path, corruptions: list[str]) -> Path:
    plan = folder / "plan.toml"
    lines = ['methods = "zeroshot"', 'datasets = "photo-c"', 'backbones = "photo"', f"corruptions = {corruptions}"]
    plan.write_text("\n".join(lines))
    return plan


class ScriptedPool:
    """Yields given events and moves a clock before each."""

    count = 2

    def __init__(self, moments: list[tuple[float, Event]], clock: list[float]) -> None:
        self.moments, self.clock = moments, clock

    def __enter__(self) -> ScriptedPool:
        return self

    def __exit__(self, *problem: object) -> None: ...

    def describe(self, worker: int) -> str:
        return f"place {worker}"

    def run(self, tasks: Sequence[Task]) -> Iterator[Event]:
        for moment, event in self.moments:
            self.clock[0] = moment
            yield event


def test_time_counts_while_all_workers_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(ray_cost.time, "monotonic", lambda: clock[0])
    tasks = list_tasks([parse_plan("test", "", Path(), PLAN)], None, lambda words: None)
    a, b, c, d, e, f = tasks
    moments = [
        (2.0, Event("progress", 0, a, 10)),
        (5.0, Event("done", 0, a)),
        (5.5, Event("done", 0, c)),
        (6.0, Event("done", 1, b)),  # the window opens: both workers have finished a run
        (9.5, Event("progress", 0, d, 20)),
        (10.0, Event("done", 1, e)),
        (14.0, Event("done", 0, d)),  # one task left for two workers: it closes
        (20.0, Event("done", 1, f)),
    ]
    pool = TimedWorkers(ScriptedPool(moments, clock))
    with pool:
        assert list(pool.run(tasks)) == [event for _, event in moments]
    assert pool.turn == Turn(6.0, 200, 8.0)
    assert (pool.count, pool.describe(1)) == (2, "place 1")


def test_shares_are_those_of_the_turns() -> None:
    found = Overhead([Turn(1, 100, 1), Turn(1, 100, 2)], [Turn(3, 80, 1), Turn(5, 95, 2)], 9.0, 7)
    assert found.shares == [0.8, 0.95]
    text = found.describe()
    assert "Share: 0.88 (0.80 to 0.95 in the turns); aim: >= 0.9, missed." in text
    assert "took 9.0 s to start" in text


@pytest.mark.ray
def test_command_measures_both(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'lmr[ray]'")
    plan = write_plan(tmp_path, ["fog", "snow", "frost", "contrast", "pixelate", "elastic_transform"])
    assert main([str(plan), "--methods", "lmr", "--images", "512", "--turns", "1"]) == 0
    printed = capsys.readouterr()
    assert "2 nodes on Ray" in printed.out
    assert "All 6 rows are the same on both sides" in printed.out
    assert "turn 1 of 1" in printed.err


def test_a_plan_that_keeps_nobody_busy_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = write_plan(tmp_path, ["fog", "snow"])
    assert main([str(plan), "--turns", "1"]) == 2
    assert "more than 4 runs" in capsys.readouterr().err
