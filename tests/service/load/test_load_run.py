"""The experiments in their small forms, against the real service in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmr.core.errors import LmrError
from lmr.service.load.load_run import EXPERIMENTS, run_load

FAULTS = ("kill", "disk-full", "bad-input", "sigterm", "streams")  # their verdicts do not depend on the machine
FIGURES = ("latency", "throughput-8", "overload")  # theirs do


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_survived(name: str, tmp_path: Path) -> None:
    (result,) = run_load([name], short=True, folder=str(tmp_path))
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    claims = {key: value for key, value in result.figures.items() if key != "memory_growth"}
    assert result.verdict == "met" or result.figures.get("memory_growth", 0) > 1, (result.found, claims, logs)


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
    assert {*FAULTS, *FIGURES, "throughput-1", "throughput-vit"} == set(EXPERIMENTS)


def test_unknown_experiments_are_refused_before_anything_starts() -> None:
    with pytest.raises(LmrError, match="There is no experiment 'kil'; choose from: throughput-vit"):
        run_load(["kil"])
