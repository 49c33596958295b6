"""Trials of the watch: streams are what they are called, and results are kept."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.watch_trials import trials as module
from lab.watch_trials.streams import KINDS, WatchTrial, list_trials, show
from lab.watch_trials.trials import TrialResult, TrialSettings, count_below, format_results, run_trial, run_trials
from lmr import LmrError, create, load
from lmr.bench.inputs import find_dataset
from lmr.data.dataset import Dataset, ImageArray
from lmr.watch.settings import read_watch

pytestmark = pytest.mark.usefixtures("tiny_models")


class Plates(Dataset):
    """Forty plain images of four classes; the red value is the class, the green one the corruption."""

    name, classes, domains = "plates", ("a", "b", "c", "d"), ("fog", "gaussian_noise")
    digest = "0"

    def labels(self, domain: str) -> NDArray[np.int64]:
        return np.arange(40) % 4

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        return [np.full((2, 2, 3), (k % 4, self.domains.index(domain), 0), np.uint8) for k in indices]


def test_streams_are_what_they_are_called() -> None:
    def watch(kind: str) -> tuple[list[set[int]], list[set[int]]]:
        batches = list(show(Plates(), kind, 200, 8, seed=1))
        assert all(b.images.shape == (8, 2, 2, 3) for b in batches)
        for batch in batches:
            shown = batch.labels >= 0
            assert (batch.images[shown][:, 0, 0, 0] == batch.labels[shown]).all()
        return [set(b.labels.tolist()) for b in batches], [set(b.images[..., 1].flatten().tolist()) for b in batches]

    labels, greens = watch("steady")
    assert set.union(*labels) == {0, 1, 2, 3}
    assert set.union(*greens) == {0}
    labels, _ = watch("one class")
    assert len(set.union(*labels[:100])) == 1
    assert len(set.union(*labels[100:])) == 4
    labels, _ = watch("runs")
    assert {len(set.union(*labels[k : k + 50])) for k in range(0, 200, 50)} == {1}
    _, greens = watch("change")
    assert (set.union(*greens[:100]), set.union(*greens[100:])) == ({0}, {1})
    labels, _ = watch("majority")
    assert set.union(*labels) == {0, 1, 2, 3}
    shares = np.bincount(np.concatenate([b.labels for b in show(Plates(), "majority", 200, 8, 1, dominant=2)])) / 1600
    assert shares[2] == pytest.approx(0.8, abs=0.04)
    labels, greens = watch("noise")
    assert set.union(*labels[50:100]) == {-1}
    assert -1 not in set.union(*labels[:50], *labels[100:])
    with pytest.raises(LmrError, match="no kind of stream 'waves'"):
        next(show(Plates(), "waves", 2, 2, 1))
    with pytest.raises(LmrError, match="no class 4; choose from 0 to 3"):
        next(show(Plates(), "majority", 2, 2, 1, dominant=4))
    batch = next(show(Plates(), "steady", 2, 2, 1, domain="gaussian_noise"))
    assert set(batch.images[..., 1].flatten().tolist()) == {1}


def test_trials_are_of_known_kinds_and_methods() -> None:
    clip = load("pocket").classifier(["red star", "blue ring"])
    trials = list_trials()
    assert len({trial.name for trial in trials}) == len(trials)
    assert {trial.kind for trial in trials} == set(KINDS)
    assert {trial.healthy for trial in trials} == {True, False}
    for trial in trials:
        create(trial.method, clip)


def test_methods_have_the_values_for_the_number_of_classes() -> None:
    clip = load("pocket").classifier(["red star", "blue ring"])
    for trial in list_trials():
        method = create(trial.method, clip)
        suited = method.choose_values(clip.classes)
        assert {key: getattr(method, key) for key in suited} == suited


@pytest.mark.parametrize(
    ("gain", "steps"),
    [([0.0] * 50, 0), ([-0.1] * 50, 50), ([-0.1] * 10 + [0.0] * 40, 27), ([np.nan] * 30 + [0.0] * 30, 0)],
)
def test_steps_below_zero_shot(gain: Sequence[float], steps: int) -> None:
    assert count_below(np.array(gain)) == steps


def test_finished_trials_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, out = TrialSettings(steps=3, batch_size=4), tmp_path / "trials.jsonl"
    first = run_trials(settings, out, ["steady"])
    assert first[0].steps == 3
    assert first[0].rollbacks == 0
    assert set(first[0].largest) >= {"compared", "drift"}
    monkeypatch.setattr(module, "run_trial", lambda *_: pytest.fail("it was run again"))
    assert run_trials(settings, out, ["steady"]) == first
    assert "| steady (healthy) | lmr(preset='auto') |" in format_results(first)
    with pytest.raises(LmrError, match="no trial 'stormy'"):
        run_trials(settings, out, ["stormy"])


@pytest.mark.parametrize("what", ["version", "data"])
def test_finished_trials_of_other_results_or_data_are_run_again(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, out = TrialSettings(steps=2, batch_size=4), tmp_path / "trials.jsonl"
    (first,) = run_trials(settings, out, ["steady"])
    if what == "version":
        monkeypatch.setattr(module, "RESULTS_VERSION", "0.0.0")
    else:
        monkeypatch.setattr(type(find_dataset("pocket-c", None)), "digest_part", lambda *_: "other images")
    (again,) = run_trials(settings, out, ["steady"])
    assert again.run != first.run
    assert len(out.read_text().splitlines()) == 2


def test_all_events_are_counted_and_not_the_last_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = read_watch("watch(every=1, entropy=1e6, spread=1e6, entropy_ratio=0, least=1, confirm=2, rest=1, window=1)")
    assert eager is not None
    trial = next(trial for trial in list_trials() if trial.name == "rate ten times too high")
    results = []
    for kept in (100, 1):
        monkeypatch.setattr("lmr.watch.stream_watch.EVENTS", kept)
        results.append(run_trial(trial, TrialSettings(steps=8, batch_size=4, reset_every=99, watch=eager))[0])
    assert results[0].rollbacks > 2
    assert results[0] == results[1]


def test_signals_of_every_step_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, out = TrialSettings(steps=3, batch_size=4), tmp_path / "trials.jsonl"
    first = run_trials(settings, out, ["steady"])
    again = run_trials(settings, out, ["steady"], traces=tmp_path / "signals")  # a line without its trace is run again
    assert again == first
    (trace,) = (tmp_path / "signals").iterdir()
    with trace.open(newline="") as file:
        steps = list(csv.DictReader(file))
    assert [step["step"] for step in steps] == ["1", "2", "3"]
    assert {step["health"] for step in steps} == {"ok"}
    assert max(float(step["drift"]) for step in steps) == first[0].largest["drift"]
    assert float(np.mean([float(step["watched"]) for step in steps])) == pytest.approx(first[0].watched)
    monkeypatch.setattr(module, "run_trial", lambda *_: pytest.fail("it was run again"))
    assert run_trials(settings, out, ["steady"], traces=tmp_path / "signals") == first


def test_methods_with_the_same_answers_are_run_once() -> None:
    """A watch that only reports has the plain method's answers, and so has a reset that never comes."""
    trial = next(trial for trial in list_trials() if trial.name == "rate ten times too high")
    # alarmed by everything
    eager = "watch(every=1, entropy=1e6, spread=1e6, entropy_ratio=0.0, least=1, confirm=2, rest=1{})"

    def run(mode: str, reset_every: int) -> TrialResult:
        watch = read_watch(eager.format(mode))
        assert watch is not None
        return run_trial(trial, TrialSettings(steps=6, batch_size=4, reset_every=reset_every, watch=watch))[0]

    acting, reporting = run("", 2), run(", mode='report'", 99)
    assert (acting.suspicions, acting.rollbacks > 0) == (1, True)
    assert (reporting.suspicions, reporting.rollbacks) == (1, 1)  # it would have acted once
    assert reporting.plain == reporting.watched == reporting.reset == acting.plain
    assert acting.largest["drift"] < reporting.largest["drift"]


# The table.

SICK = TrialResult(
    WatchTrial("rain", "tent", "steady", healthy=False), "a", 100, zero_shot=0.5, plain=0.1, watched=0.48, reset=0.3,
    detected=12, acted=None, below=31, plain_below=99, reset_below=77, suspicions=2, rollbacks=1, causes={}, largest={},
)  # fmt: skip


def test_numbers_are_in_their_columns() -> None:
    head, _, line = format_results([SICK]).splitlines()
    cells = dict(zip(head.split("|")[3:-1], line.split("|")[3:-1], strict=True))
    assert cells[" zero-shot "] == " 50.0 "
    assert cells[" noticed "] == " 12 "
    assert cells[" acted "] == " – "
    assert line == "| rain | tent | 50.0 | 10.0 | 48.0 | 30.0 | 12 | – | 99 | 31 | 77 | 2 | 1 |"
    named = format_results([replace(SICK, causes={"doubt": 2, "drift": 1})]).splitlines()[-1]
    assert named.endswith("| 2 (doubt, drift) | 1 |")
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
