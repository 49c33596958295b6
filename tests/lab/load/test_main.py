"""The experiments in their small forms, against the real service in a process of its own; and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.load.__main__ import run_load
from lab.load.bench import LoadBench
from lab.load.nginx import MISSING
from lmr.core.errors import LmrError

pytestmark = pytest.mark.slow

# What must be true on any machine, however slow: verdicts also judge times and memory.
SURVIVED = {"wrong": [], "other_labels": 0, "state_gap": pytest.approx(0, abs=1e-3)}


def test_kills_are_survived(tmp_path: Path) -> None:
    (result,) = run_load(["kill"], LoadBench(tmp_path, short=True))
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert {key: result.figures[key] for key in SURVIVED} == SURVIVED, (result.found, logs)
    assert result.figures["acknowledged"] > 0


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_replica_and_the_database_are_killed_and_nothing_is_lost_or_applied_twice(tmp_path: Path) -> None:
    (result,) = run_load(["postgres"], LoadBench(tmp_path, short=True))
    figures = result.figures
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert result.verdict == "met", (result.found, figures["wrong"], logs)
    assert (figures["kills"], figures["database_kills"], figures["listed_by_one"]) == (1, 1, 4)


def test_throughput_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "load.jsonl"
    (result,) = run_load(["throughput"], LoadBench(tmp_path, short=True), str(out))
    assert result.verdict in ("met", "missed")
    kept = json.loads(out.read_text())
    assert kept["found"] == result.found
    assert set(kept["figures"]["codes"]) == {"200"}


def test_unknown_experiments_are_refused_before_anything_starts() -> None:
    with pytest.raises(LmrError, match="experiment"):
        run_load(["kil"], LoadBench(Path()))
