"""docs/methods.md: its tables name every method, and its presets and their sources are those of the classes."""

from __future__ import annotations

import re
from pathlib import Path

import lmr

PAGE = (Path(__file__).parent.parent / "docs" / "methods.md").read_text(encoding="utf-8")


def list_preset_rows() -> list[str]:
    """One row for each method and source, as the page should have them."""
    rows = []
    for name in lmr.list_methods():
        sources: dict[str, list[str]] = {}
        for preset, content in lmr.find_method(name).card.presets.items():
            sources.setdefault(content.source, []).append(f"`{preset}`")
        rows += [f"| `{name}` | {', '.join(presets)} | {source} |" for source, presets in sources.items()]
    return rows


def test_presets_and_sources_are_those_of_the_classes() -> None:
    rows = PAGE.partition("| method | presets | source |\n|---|---|---|\n")[2].splitlines()
    assert rows == list_preset_rows(), "\n".join(list_preset_rows())


def test_first_table_has_every_method() -> None:
    table = PAGE.partition("| name | adapts |")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(named) == lmr.list_methods()


def test_all_methods_that_take_views_are_named() -> None:
    part = PAGE.partition("## Methods with views")[2].partition("##")[0]
    methods = map(lmr.find_method, lmr.list_methods())
    assert [method.card.label for method in methods if method.takes_views and method.card.label not in part] == []
