"""Names that others chose do nothing on a terminal or in a spreadsheet; passwords are not shown."""

from __future__ import annotations

import pytest

from lmr.core.foreign_text import hide_password, make_printable, read_cell, write_cell


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


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://user:p@ss@10.0.0.17:554/stream?x=1", "rtsp://10.0.0.17:554/stream?x=1"),
        ("rtsp://user:p#ss@host/s", "rtsp://host/s"),
        ("rtsp://user:p?ss@host/s", "rtsp://host/s"),
        ("rtsp://user:p/ss@host/s", "rtsp://host/s"),
        ("rtsp://user:p://ss@host/s", "rtsp://host/s"),
        ("rtsp://host/s?user=u&Password=p%20ss&channel=1", "rtsp://host/s?user=u&Password=***&channel=1"),
        ("user:pass@host", "host"),
    ],
)
def test_passwords_are_not_shown(address: str, shown: str) -> None:
    assert hide_password(address) == shown
