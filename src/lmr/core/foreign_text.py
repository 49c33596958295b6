"""Text that others chose, such as names of files and classes, where a terminal or a spreadsheet would act on it."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # the beginning of a cell that a spreadsheet computes; quotes as added here


def make_printable(text: str) -> str:
    r"""Return a text for a terminal: control characters, which may move the cursor or more, as their codes.

    Examples:
        >>> from lmr.core.foreign_text import make_printable
        >>> print(make_printable("café \x1b[2J"))
        café \x1b[2J
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def write_cell(text: str) -> str:
    """Return a cell of a .csv file that a spreadsheet takes as text: behind a quote if it looks like a formula.

    Examples:
        >>> from lmr.core.foreign_text import write_cell
        >>> write_cell("=1+1"), write_cell("cat")
        ("'=1+1", 'cat')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def read_cell(cell: str) -> str:
    """Return the text that ``write_cell`` wrote."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
