"""Help, version, completion and wrong options come at once: without numpy and torch, in a fraction of a second."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from lmr.bench.cost.settings import METHODS
from lmr.cli.parser import COMMANDS, build_command, build_parser
from lmr.report.paper.paper_file import list_table_names

HEAVY = {"torch", "numpy", "PIL", "scipy", "cv2", "matplotlib", "tqdm", "safetensors", "transformers"}
QUICK = {
    "help": ["--help"],
    "version": ["--version"],
    "nothing": [],
    "unknown command": ["predit"],
    "unknown option": ["bench", "--nothing"],
    "wrong choice": ["bench", "--order", "sideways"],
    "completion": ["completion", "bash"],
    **{f"help of {name}": [name, "--help"] for name in COMMANDS},
}
LIMIT = 0.4  # seconds of CPU


@pytest.mark.parametrize("words", QUICK.values(), ids=QUICK)
def test_start_brings_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lmr", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 2)
    imported = {name.partition(".")[0] for name in re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)}
    assert {"lmr", "argparse"} <= imported
    assert not imported & HEAVY


@pytest.mark.parametrize("case", ["help", "version", "unknown option", "completion", "help of bench"])
def test_start_is_quick(case: str) -> None:
    best = float("inf")
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "lmr", *QUICK[case]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        best = min(best, usage.ru_utime + usage.ru_stime)
        if best < LIMIT:
            break
    assert process.returncode in (0, 2)
    assert best < LIMIT


def test_each_command_is_filled_when_it_is_chosen() -> None:
    for name in COMMANDS:
        alone = build_command(name)
        chosen = build_parser(name)
        assert alone.format_usage().startswith(f"usage: lmr {name} ")
        assert alone.description
        assert "example" in (alone.epilog or "")
        with pytest.raises(SystemExit):
            chosen.parse_args([name, "--no-such-option"])


def test_names_in_the_help_are_those_of_the_package() -> None:
    """They are written out there, as the modules that know them are slow to import."""
    assert ",".join(list_table_names()) in "".join(build_command("reproduce").format_help().split())  # it wraps
    assert f"(default: {' '.join(METHODS)})" in " ".join(build_command("cost").format_help().split())
