"""The tables of docs/results that are made from the stored runs are those that the runs give today."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import result_pages
from row_maker import complete, make_row, write_runs


@pytest.mark.slow
def test_pages_show_what_the_stored_runs_give() -> None:
    tables = result_pages.make_tables(*result_pages.RUNS)
    for page in result_pages.PAGES:
        text = page.read_text(encoding="utf-8")
        assert result_pages.BLOCK.search(text)
        assert result_pages.fill(text, tables) == text, f"python -m lab.result_pages makes {page.name} anew"


def test_only_what_is_between_the_comments_is_replaced(tmp_path: Path) -> None:
    rows = [make_row("LMR", complete("lmr"), "fog", 0.5), make_row("TENT", complete("tent"), "fog", 0.25)]
    tables = result_pages.make_tables(write_runs(tmp_path, rows))
    name = f"{tmp_path.name}/accuracy-cifar10-c-openai-clip-vit-base-patch16-s5"
    page = f"before\n<!-- table: {name} -->\nold | table\n<!-- end -->\nafter\n"
    made = result_pages.fill(page, tables)
    assert made.startswith(f"before\n<!-- table: {name} -->\n\n| method | Fog |\n")
    assert made.endswith("<!-- end -->\nafter\n")
    assert "old" not in made
    assert result_pages.fill(made, tables) == made
    absent = result_pages.fill("<!-- table: nothing -->\nold\n<!-- end -->", tables)
    assert absent == f"<!-- table: nothing -->\n\n{result_pages.MISSING}\n\n<!-- end -->"
