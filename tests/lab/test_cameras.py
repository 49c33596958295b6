from __future__ import annotations

import numpy as np
import pytest

from lab.cameras import BEFORE, Scene, count_alarms, main, run_fault
from lmr.data.photographs import Photographs
from lmr.service.engine.camera import CameraState

PHOTOGRAPHS = Photographs().read("clean", 0, range(40))


def test_an_ordinary_camera_raises_no_alarm() -> None:
    assert count_alarms(Scene(PHOTOGRAPHS, "repeating", np.random.default_rng(0)), 300) == []


def test_a_fault_is_timed_from_its_beginning() -> None:
    entered, soon, ended = run_fault(Scene(PHOTOGRAPHS, "fixed", np.random.default_rng(1)), CameraState.BLACK)
    assert (entered, soon, ended) == ([CameraState.BLACK], 3, True)
    assert BEFORE == 300


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--frames", "40", "--cameras", "0"]) == 0
    printed = capsys.readouterr().out
    assert "false alarms" in printed
    assert "upside down" in printed
