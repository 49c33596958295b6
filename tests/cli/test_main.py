from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lmr.cli import main
from lmr.cli.parser import COMMANDS


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_teaches_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "example" in text
    assert f"lmr {' '.join(command)}".rstrip() in text.rpartition("examples:")[2]
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize(
    ("word", "advice"), [("pedict", "Did you mean 'predict'?"), ("xyz", "'lmr --help' lists the commands.")]
)
def test_unknown_command_is_refused_with_the_nearest_one(
    word: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([word, "--labels", "a,b"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"lmr: There is no command {word!r}. {advice}\n"


def test_bare_command_prints_the_help_with_every_command_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out == text
    for name, command in COMMANDS.items():
        listed = text.partition(f"\n{command.group}:\n")[2].partition("\n\n")[0]
        assert f"  {name:<12}{command.help}" in listed.splitlines()


# Benchmarks: the commands are wired; what they do is tested beside the functions they call.


MINE = '''
import lmr

@lmr.register("mine")
class Mine(lmr.Method):
    """Weights times \u2212 1."""
'''


@pytest.mark.parametrize(
    ("settings", "minus"), [({"PYTHONIOENCODING": "ascii"}, "\\u2212"), ({"PYTHONIOENCODING": "utf-8"}, "\u2212")]
)
def test_a_terminal_that_lacks_a_character_shows_its_code(settings: dict[str, str], minus: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "lmr", "list", f"{tmp_path / 'mine.py'}:mine"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, **settings},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Weights times {minus} 1." in done.stdout


def test_an_error_that_follows_an_interrupt_is_the_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some libraries turn KeyboardInterrupt into an error; without an interrupt such an error is a defect and shows."""

    def fail(*_: object) -> None:
        raise SystemError("initialization failed")

    def stop(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        except KeyboardInterrupt:
            fail()

    monkeypatch.setattr("lmr.apps.listing.describe_everything", stop)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "lmr: Interrupted.\n"
    monkeypatch.setattr("lmr.apps.listing.describe_everything", fail)
    with pytest.raises(SystemError):
        main(["list"])


def test_the_signals_of_a_caller_stay_as_they_are() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(["list"]) == 0
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["list"])))  # where signals cannot be set
    thread.start()
    thread.join()
    assert codes == [0]
