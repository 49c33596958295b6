"""The README's Python runs, and what it names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

import lmr
from lmr.cli.parser import COMMANDS, parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_of_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {"images": torch.randn(8, 3, 32, 32), "ids": torch.arange(8)}
    for block in blocks:
        exec(block, names)
    assert isinstance(names["answer"], lmr.Prediction)
    assert isinstance(names["backbone"], lmr.Backbone)


def test_files_the_readme_names_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert "docs/demo.png" in links
    for link in links:
        assert (ROOT / link).exists(), link


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def find_commands() -> list[str]:
    """Every line that calls lmr in a code block of the README and the docs, without the remark to its right."""
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in path.read_text(encoding="utf-8").split("```")[1::2]:
            for line in block.replace("\\\n", " ").splitlines():
                found += re.findall(r"(?:^|&& |\$ )(?:\S*/)?lmr (.+?)(?=   | &&|$)", line)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("command", find_commands())
def test_commands_of_the_pages_parse(command: str) -> None:
    words = shlex.split(command, comments=True)
    assert words[0] in COMMANDS
    parse(words)


def test_the_pages_have_commands() -> None:
    assert {command.split()[0] for command in find_commands()} >= {"predict", "bench", "report", "cost"}
