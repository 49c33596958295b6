from __future__ import annotations

import argparse

import pytest

from lab.command import build_parser, run_command
from lmr.core.errors import LmrError


def make_parser() -> argparse.ArgumentParser:
    parser = build_parser("example", "Show an example.", "examples:\n  python -m lab.example 3")
    parser.add_argument("count", type=int)
    return parser


def test_the_exit_code_says_whether_the_experiment_could_run(capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: argparse.Namespace) -> str | None:
        if options.count == 0:
            raise LmrError("Expected at least 1, got 0.")
        if options.count == 1:
            raise FileNotFoundError("no such file")
        if options.count == 2:
            raise KeyboardInterrupt
        return "too few" if options.count == 3 else None

    assert [run_command(make_parser(), run, [str(count)]) for count in range(5)] == [2, 2, 130, 1, 0]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "python -m lab.example: Expected at least 1, got 0.",
        "python -m lab.example: no such file",
        "python -m lab.example: interrupted.",
        "python -m lab.example: too few",
    ]


def test_help_shows_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run_command(make_parser(), lambda options: None, ["--help"])
    shown = capsys.readouterr().out
    assert "usage: python -m lab.example" in shown
    assert "examples:\n  python -m lab.example 3" in shown
