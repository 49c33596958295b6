"""The experiments in their small forms, against the real service in a process of its own; and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.load import __main__ as command
from lab.load.__main__ import DESCRIPTION, EXPERIMENTS, ON_POSTGRES, ON_RAY, main, run_load
from lab.load.bench import LoadBench, LoadResult, Verdict
from lmr.core.errors import LmrError

# What must be true on any machine, however slow: verdicts also judge times and memory.
FAULTS: dict[str, dict[str, Any]] = {
    "kill": {"wrong": [], "state_gap": pytest.approx(0, abs=1e-3)},
    "disk-full": {"refusals": [503], "adapted": 0, "readiness": "degraded", "state_unchanged": True, "recovered": True},
    "bad-input": {"wrong": []},
    "sigterm": {"exit_code": 0, "lost": []},
    "streams": {"worst_logit_gap": pytest.approx(0, abs=1e-4), "same_labels": True, "problems": []},
}
FIGURES = ("latency", "overload", "throughput-8")
OTHER_SIZES = ("throughput-vit", "throughput-1")  # the code of throughput-8; the first writes 600 MB


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_survived(name: str, tmp_path: Path) -> None:
    (result,) = run_load([name], LoadBench(tmp_path, short=True))
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert {key: result.figures[key] for key in FAULTS[name]} == FAULTS[name], (result.found, logs)
    assert result.figures.get("acknowledged", 1) > 0


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_measured(name: str, tmp_path: Path) -> None:
    out = tmp_path / "load.jsonl"
    (result,) = run_load([name], LoadBench(tmp_path, short=True), str(out))
    assert result.verdict in ("met", "missed")
    kept = json.loads(out.read_text())
    assert kept["found"] == result.found
    assert set(kept["figures"]["codes"]) <= {"200", "429"}
    assert "200" in kept["figures"]["codes"]


def test_every_experiment_is_tried() -> None:
    assert {*FAULTS, *FIGURES, *OTHER_SIZES} == set(EXPERIMENTS)


def test_unknown_experiments_are_refused_before_anything_starts() -> None:
    with pytest.raises(LmrError, match="There is no experiment 'kil'; choose from: throughput-vit"):
        run_load(["kil"], LoadBench(Path()))


@pytest.mark.parametrize(("verdict", "code"), [("met", 0), ("missed", 1)])
def test_misses_are_shown_and_are_a_complaint(
    verdict: Verdict, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(bench: LoadBench) -> LoadResult:
        assert (bench.short, bench.seed, bench.kills) == (True, 3, 7)
        return LoadResult("latency", "pocket", "fast", "slow", verdict)

    monkeypatch.setitem(command.EXPERIMENTS, "latency", measure)
    assert main(["latency", "--short", "--seed", "3", "--kills", "7"]) == code
    printed = capsys.readouterr()
    assert f"| latency | pocket | fast | slow | {verdict} |" in printed.out
    assert ("Missed: latency." in printed.err) == bool(code)


def test_wrong_arguments_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kil"]) == 2
    assert main(["kill", "--kills", "0"]) == 2
    assert "Expected at least one kill" in capsys.readouterr().err


def test_the_help_names_every_experiment() -> None:
    for name in EXPERIMENTS | ON_POSTGRES | ON_RAY:
        assert f"\n  {name} " in DESCRIPTION
