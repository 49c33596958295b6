"""docs/methods.md: its table and its commands name methods that exist."""

from __future__ import annotations

import re
from pathlib import Path

import lmr

PAGE = (Path(__file__).parent.parent / "docs" / "methods.md").read_text(encoding="utf-8")


def test_methods_of_the_table_exist() -> None:
    table = PAGE.partition("| name | adapts |")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert len(named) > 30
    assert set(named) <= set(lmr.list_methods())
