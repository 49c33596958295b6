"""The logger "lmr": what is logged, at which level, and that nothing is printed unless somebody listens."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

import lmr
from lmr.cli import main
from lmr.core import registry
from lmr.core.log import LOGGER, hide_logs


class _Broken:
    """An entry point of a package whose import fails."""

    name, value = "others", "others.adaptation"

    def load(self) -> None:
        raise ImportError("no module named others")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry is filled again, with a broken package among the installed ones."""
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: [_Broken()])
    monkeypatch.setattr(registry, "_load_installed", registry._load_installed.__wrapped__)


WORDS = "The methods of 'others.adaptation' (entry point 'others') cannot be imported: no module named others"


@pytest.mark.usefixtures("broken")
def test_a_broken_package_is_a_warning(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    assert lmr.list_methods()
    assert caplog.record_tuples == [("lmr", logging.WARNING, WORDS)]
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("broken")
def test_commands_show_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(LOGGER.handlers)
    assert main(["list"]) == 0
    shown = capsys.readouterr()
    assert f"lmr: {WORDS}\n" in shown.err
    assert WORDS not in shown.out
    assert LOGGER.handlers == before


def test_nothing_is_printed_unless_somebody_listens() -> None:
    lines = ["from lmr.core.log import LOGGER", "LOGGER.warning(1)", "import logging", "logging.basicConfig()"]
    program = "\n".join([*lines, "LOGGER.warning(2)"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout, done.stderr) == ("", "WARNING:lmr:2\n")


def test_logs_can_be_hidden_for_one_thread(caplog: pytest.LogCaptureFixture) -> None:
    with hide_logs():
        LOGGER.warning("hidden")
        other = threading.Thread(target=LOGGER.warning, args=("of another thread",))
        other.start()
        other.join()
    LOGGER.warning("after")
    assert [record.getMessage() for record in caplog.records] == ["of another thread", "after"]
