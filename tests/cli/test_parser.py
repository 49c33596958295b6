"""Help, version and wrong options come at once: without numpy and torch, in a fraction of a second."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from lmr.cli.parser import COMMANDS, build_command, parse
from lmr.models.catalog import DEFAULT_MODEL, KNOWN_MODELS

HEAVY = {"torch", "numpy", "PIL", "scipy", "cv2", "matplotlib", "rich", "safetensors", "transformers"}
QUICK = {
    "help": ["--help"],
    "version": ["--version"],
    "nothing": [],
    "unknown command": ["predit"],
    "unknown option": ["bench", "--nothing"],
    "wrong choice": ["predict", "x", "--labels", "a,b", "--memory", "sideways"],
    **{f"help of {name}": [name, "--help"] for name in COMMANDS},
}
MOST_MODULES = 250  # with those of Python; torch brings more than a thousand


@pytest.mark.parametrize("words", QUICK.values(), ids=QUICK)
def test_start_brings_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lmr", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 2)
    modules = re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)
    imported = {name.partition(".")[0] for name in modules}
    assert {"lmr", "argparse"} <= imported
    assert not imported & HEAVY
    assert len(modules) < MOST_MODULES


def test_a_command_is_filled_when_it_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["demo", "--images", "3"]).images == 3
    with pytest.raises(SystemExit):
        parse(["demo", "--sevrity", "3"])
    words = capsys.readouterr().err
    assert words.startswith("usage: lmr demo")
    assert "lmr demo: error: unrecognized arguments: --sevrity 3" in words


def test_default_model_is_that_of_the_package() -> None:
    """Its name is written out in the options, because the package of models is slow to import."""
    assert parse(["doctor"]).model == parse(["predict", "photos", "--labels", "cat,dog"]).model == DEFAULT_MODEL
    assert DEFAULT_MODEL in KNOWN_MODELS
    for command in ("predict", "doctor"):
        words = " ".join(build_command(command).format_help().split())
        assert f"(default: {DEFAULT_MODEL}, which comes with lmr)" in words
