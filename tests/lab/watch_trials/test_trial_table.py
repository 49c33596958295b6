"""The table of trials: numbers in their columns, false alarms of healthy streams summed up."""

from __future__ import annotations

from dataclasses import replace

from lab.watch_trials.scenarios import WatchTrial
from lab.watch_trials.trial_run import TrialResult
from lab.watch_trials.trial_table import format_results

SICK = TrialResult(
    WatchTrial("rain", "tent", "steady", healthy=False), "a", 100, zero_shot=0.5, plain=0.1, watched=0.48, reset=0.3,
    detected=12, acted=None, below=31, plain_below=99, reset_below=77, suspicions=2, rollbacks=1, largest={},
)  # fmt: skip


def test_numbers_are_in_their_columns() -> None:
    head, _, line = format_results([SICK]).splitlines()
    cells = dict(zip(head.split("|")[3:-1], line.split("|")[3:-1], strict=True))
    assert cells[" zero-shot "] == " 50.0 "
    assert cells[" noticed "] == " 12 "
    assert cells[" acted "] == " – "
    assert line == "| rain | tent | 50.0 | 10.0 | 48.0 | 30.0 | 12 | – | 99 | 31 | 77 | 2 | 1 |"
    assert head.endswith("| below: plain | watched | reset | alarms | rollbacks |")


def test_false_alarms_are_those_of_healthy_streams() -> None:
    healthy = replace(SICK.trial, healthy=True)
    results = [
        SICK,
        replace(SICK, trial=healthy, plain=0.6, watched=0.596, suspicions=3, rollbacks=0),
        replace(SICK, trial=healthy, plain=0.6, watched=0.7, suspicions=1, rollbacks=2),
    ]
    said = format_results(results).splitlines()[-1]
    assert said == "Healthy streams, 200 steps: 4 false alarms, 2 false rollbacks, at most 0.4 points lost."


def test_a_method_that_falls_by_itself_is_not_healthy() -> None:
    meant = replace(SICK, trial=replace(SICK.trial, healthy=True))
    assert not meant.healthy
    assert replace(meant, plain=0.4901).healthy
    assert not replace(meant, plain=0.4899).healthy
    assert "(healthy)" not in format_results([meant])
    assert "Healthy streams" not in format_results([meant])
