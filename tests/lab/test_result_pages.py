"""The tables of docs/results that are made from the stored runs are those that the runs give today."""

from __future__ import annotations

import pytest

from lab import result_pages


@pytest.mark.slow
def test_pages_show_what_the_stored_runs_give() -> None:
    tables = result_pages.make_tables(*result_pages.RUNS)
    for page in result_pages.PAGES:
        text = page.read_text(encoding="utf-8")
        assert result_pages.BLOCK.search(text)
        assert result_pages.fill(text, tables) == text, f"python -m lab.result_pages makes {page.name} anew"
