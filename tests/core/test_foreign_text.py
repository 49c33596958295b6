"""Names that others chose do nothing on a terminal or in a spreadsheet, and are read back as they were."""

from __future__ import annotations

import pytest

from lmr.core.foreign_text import make_printable, read_cell, write_cell


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "\r=1", "'=1", "''=1"])
def test_formulas_are_quoted(text: str) -> None:
    assert write_cell(text) == f"'{text}"
    assert read_cell(write_cell(text)) == text


@pytest.mark.parametrize("text", ["", "cat", "a=b", "'", "'quoted'", " =1", "1-2", "ä", "\udc80"])
def test_other_cells_stay(text: str) -> None:
    assert write_cell(text) == read_cell(text) == text


def test_terminals_are_told_nothing() -> None:
    assert make_printable("a\x1b]0;title\x07\x9b2J\n\r\u202e") == r"a\x1b]0;title\x07\x9b2J\n\r\u202e"
    assert make_printable("Straße 7, \\x1b 猫") == "Straße 7, \\x1b 猫"
    assert make_printable("\udcff").isascii()
