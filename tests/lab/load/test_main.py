from __future__ import annotations

import pytest

from lab.load import load_run
from lab.load.__main__ import DESCRIPTION
from lab.load.load_bench import LoadBench
from lab.load.load_result import LoadResult, Verdict
from lmr.cli import main


@pytest.mark.parametrize(("verdict", "code"), [("met", 0), ("missed", 1)])
def test_misses_are_shown_and_are_a_complaint(
    verdict: Verdict, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(bench: LoadBench) -> LoadResult:
        assert (bench.short, bench.seed, bench.kills) == (True, 3, 7)
        return LoadResult("latency", "pocket", "fast", "slow", verdict)

    monkeypatch.setitem(load_run.EXPERIMENTS, "latency", measure)
    assert main(["load", "latency", "--short", "--seed", "3", "--kills", "7"]) == code
    said = capsys.readouterr()
    assert f"| latency | pocket | fast | slow | {verdict} |" in said.out
    assert ("Missed: latency." in said.err) == bool(code)


def test_wrong_words_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "kil"]) == 2
    assert main(["load", "kill", "--kills", "0"]) == 2
    assert "Expected at least one kill" in capsys.readouterr().err


def test_the_help_names_every_experiment() -> None:
    for name in load_run.EXPERIMENTS | load_run.ON_RAY:
        assert f"\n  {name} " in DESCRIPTION
