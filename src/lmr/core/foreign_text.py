"""Text that others chose, where a terminal or a spreadsheet would act on it, and addresses with a password in them."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # the beginning of a cell that a spreadsheet computes; quotes as added here

_SECRET = re.compile(r"((?:pass|pwd|token|secret)\w*=)[^&#/]*", re.IGNORECASE)  # in the query of an address
_PLAIN_HOST = re.compile(r"(\[[^]]*]|[^@:/?#]*)(:\d*)?(?=[/?#]|$)")  # the beginning of an address without a user


def make_printable(text: str) -> str:
    r"""Return a text for a terminal: control characters, which may move the cursor or more, as their codes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def shorten(text: str, most: int = 40) -> str:
    """Return the beginning of a text that others sent, for an error message."""
    return text if len(text) <= most else f"{text[:most]}..."


def hide_password(address: str) -> str:
    """Return an address without user and password, for messages and files.

    A password that is not percent-encoded may have any characters, so everything before the last @ goes.
    """
    scheme, separator, rest = _SECRET.sub(r"\1***", address).partition("://")
    if not separator:
        scheme, rest = "", scheme
    return scheme + separator + (rest if _PLAIN_HOST.match(rest) else rest.rpartition("@")[2])


def write_cell(text: str) -> str:
    """Return a cell of a .csv file that a spreadsheet takes as text: behind a quote if it looks like a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def read_cell(cell: str) -> str:
    """Return the text that ``write_cell`` wrote."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
