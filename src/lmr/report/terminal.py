"""Printing to terminals that cannot show every character: what an encoding lacks is spelled in ASCII."""

from __future__ import annotations

import sys

_ASCII = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "±": "+-", "×": "x", "…": "...", "→": "->", "δ": "delta", "≤": "<=", "≥": ">=",
        "·": "*", "‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ",
    }
)  # fmt: skip


def spell(text: str, encoding: str | None) -> str:
    """The text as an encoding can show it: unchanged if it can, else in ASCII, with escapes for foreign letters."""
    known = encoding or "ascii"
    try:
        text.encode(known)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(known, "backslashreplace").decode(known)
    return text


def find_encoding() -> str | None:
    """What standard output can show; None if unknown."""
    return getattr(sys.stdout, "encoding", None)


def print_text(text: str = "") -> None:
    """Print to standard output, whatever characters it can show."""
    print(spell(text, find_encoding()))
