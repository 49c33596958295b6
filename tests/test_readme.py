"""The README's Python runs, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import lmr

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
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
