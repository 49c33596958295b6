"""A stream whose images change in the last digits."""

from __future__ import annotations

import pytest

from lab.rounding import main


def test_rounding_moves_onzeta_and_not_the_frozen_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--images", "128", "--runs", "2"]
    assert main(["zeroshot", "onzeta", *words]) == 0
    frozen, onzeta = (line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert frozen[2] == frozen[3] == frozen[4]
    assert frozen[-1] == "none |"
    assert int(onzeta[-1].split()[0]) < 128
    assert main(["onzeta", *words, "--noise", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("| none |")


def test_a_method_that_is_none_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onzetta", "--images", "64"]) == 2
    assert "onzeta" in capsys.readouterr().err
