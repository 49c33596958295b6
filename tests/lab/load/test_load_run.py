"""The experiments in their small forms, against the real service in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.load.load_run import EXPERIMENTS, run_load
from lmr.core.errors import LmrError

# What must be true on any machine, however slow: verdicts also judge times and memory.
FAULTS: dict[str, dict[str, Any]] = {
    "kill": {"wrong": [], "state_gap": pytest.approx(0, abs=1e-3)},
    "disk-full": {"refusals": [503], "adapted": 0, "readiness": "degraded", "state_unchanged": True, "recovered": True},
    "bad-input": {"wrong": []},
    "sigterm": {"exit_code": 0, "lost": []},
    "streams": {"worst_logit_gap": pytest.approx(0, abs=1e-4), "same_labels": True, "problems": []},
}
FIGURES = ("latency", "overload", "throughput-8", "throughput-1")
LARGE = ("throughput-vit",)  # writes 600 MB; left to those who measure


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_survived(name: str, tmp_path: Path) -> None:
    (result,) = run_load([name], short=True, folder=str(tmp_path))
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert {key: result.figures[key] for key in FAULTS[name]} == FAULTS[name], (result.found, logs)
    assert result.figures.get("acknowledged", 1) > 0


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_measured(name: str, tmp_path: Path) -> None:
    out = tmp_path / "load.jsonl"
    (result,) = run_load([name], short=True, folder=str(tmp_path), out=str(out))
    assert result.verdict in ("met", "missed")
    kept = json.loads(out.read_text())
    assert kept["found"] == result.found
    assert set(kept["figures"]["codes"]) <= {"200", "429"}
    assert "200" in kept["figures"]["codes"]


def test_every_experiment_is_tried_or_too_large() -> None:
    assert {*FAULTS, *FIGURES, *LARGE} == set(EXPERIMENTS)


def test_unknown_experiments_are_refused_before_anything_starts() -> None:
    with pytest.raises(LmrError, match="There is no experiment 'kil'; choose from: throughput-vit"):
        run_load(["kil"])
