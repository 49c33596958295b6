"""docs/models.md: its Python runs, its screen is what the command prints, its commands parse and its links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lmr
from lmr.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def hide_numbers(text: str) -> str:
    """What may differ between machines: the last bits of measured gaps, and digests where a layout has changed."""
    text = re.sub(r"\b\d\.\de[+-]\d\d\b", "GAP", text)
    return re.sub(r"(image|text) [0-9a-f]{12}", r"\1 DIGEST", text)


def test_page_runs_and_its_screen_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert isinstance(names["backbone"], lmr.Backbone)
    (screen,) = re.findall(r"```\n(MODEL\n.*?)```", PAGE, re.DOTALL)
    assert main(["doctor"]) == 0
    assert hide_numbers(capsys.readouterr().out) == hide_numbers(screen)
