from __future__ import annotations

import io
import sys

import pytest

from lmr.core.progress import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called in the test itself: pytest sets its own standard error after the fixtures."""
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_bar_shows_what_is_finished_of_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with show_progress("labelling", 5, done=2) as bar:
        bar.advance(3)
        bar.describe("almost done")
    assert "5/5" in terminal.getvalue()
    assert "almost done" in terminal.getvalue()


def test_short_work_shows_no_delayed_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with show_progress("encoding", 5, delay=60) as bar:
        bar.advance(5)
    assert terminal.getvalue() == ""
    with show_progress("encoding", 5, delay=1e-9) as bar:
        bar.advance(5)
    assert "encoding" in terminal.getvalue()


def test_nothing_is_printed_where_nobody_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("labelling", 5) as bar:
        bar.advance(2)
    with show_progress("labelling", 5, shown=False):
        pass
    assert bar.done == 2
    assert capsys.readouterr().err == ""
