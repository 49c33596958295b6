"""The logger "lmr": what is logged, at which level, and that nothing is printed unless somebody listens."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import lmr
from lmr.cli import main
from lmr.core import registry
from lmr.core.log import LOGGER, hide_logs
from pocket import load_pocket


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


def test_answers_that_are_not_finite_are_told(caplog: pytest.LogCaptureFixture) -> None:
    class Brittle(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1 / (x - 1).clamp(min=0) * 0 + x  # NaN unless above 1

    clip = lmr.ZeroShot(Brittle(), torch.eye(3) + 0.1)
    with caplog.at_level(logging.INFO, "lmr"):
        lmr.create("zeroshot", clip).step(torch.tensor([[2.0, 3, 4], [0, 3, 4]]))
    assert [record.getMessage() for record in caplog.records] == ["zeroshot: 1 of 2 answers are not valid"]


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.INFO, "lmr"):
        load_pocket().classifier(["red ring", "blue star"], cache=tmp_path / "file" / "folder")
    assert "Prototypes cannot be cached" in caplog.text


def test_logs_can_be_hidden_for_one_thread(caplog: pytest.LogCaptureFixture) -> None:
    with hide_logs():
        LOGGER.warning("hidden")
        other = threading.Thread(target=LOGGER.warning, args=("of another thread",))
        other.start()
        other.join()
    LOGGER.warning("after")
    assert [record.getMessage() for record in caplog.records] == ["of another thread", "after"]
