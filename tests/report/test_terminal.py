from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmr.report.terminal import spell
from row_maker import make_row, make_world, write_runs


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "utf-8"])
def test_spelled_text_can_be_shown(encoding: str) -> None:
    text = spell("LMR − TENT ± 1 – 2 × 3 … a → b, δ ≤ 4, café, 図", encoding)
    text.encode(encoding)
    assert ("−" in text) == (encoding == "utf-8")
    assert text.startswith("LMR ")


def test_an_unknown_encoding_gets_ascii() -> None:
    assert spell("LMR − TENT …", None) == "LMR - TENT ..."
    assert spell("plain", None) == "plain"


def test_a_report_can_be_read_on_an_ascii_terminal(tmp_path: Path) -> None:
    """The minus of differences, the dash of missing numbers, arrows, δ, and names in any script."""
    rows = [row for row in make_world() if row.domain in ("frost", "fog")]
    rows.append(make_row("図", "zeroshot()", "frost", 0.5, dataset="naïve"))
    for domains in ({"frost": 0.4, "fog": 0.5}, {"fog": 0.4, "frost": 0.5}):
        rows.append(make_row("zero-shot", "zeroshot()", "continual", 0.5, reset="never", domains=domains))
    runs = write_runs(tmp_path / "runs", rows)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "lmr", "report", str(runs), "--no-figures"]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode("ascii")
    assert "LMR - TENT " in shown
    assert "delta" in shown
    assert "frost -> fog" in shown
    table = (runs / "report" / "tables" / "gains-pocket-c-openai-clip-vit-base-patch16-s5.txt").read_text("utf-8")
    assert "LMR − TENT" in table
