"""Class names: the rules for every list of them, whether it comes from a command, a file, a request or Python."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from lmr.core.answer import UNKNOWN
from lmr.core.errors import LmrError

# Far above what text towers read, about 300 characters; a longer text would be tokenised before it is cut.
MOST_CHARACTERS, MOST_IN_ALL = 500, 2_000_000  # of a name, and of all names together
RESERVED = (UNKNOWN, "null")  # what answers have in place of a name
_SHOWN = 40
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # categories of Unicode: controls, surrogates, ends of lines and paragraphs
_DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # they turn the text that follows


def check_class_names(names: Sequence[str]) -> None:
    r"""Refuse a name that is empty, too long, reserved, or with characters that change how a line is shown.

    The time is proportional to the characters, and small: call this before anything else is done with names.
    """
    for place, name in enumerate(names, 1):
        if not isinstance(name, str):
            raise LmrError(f"Expected class names as texts, got {name!r:.{_SHOWN}} as name {place}.")
        if not name.replace("_", " ").strip():
            raise LmrError(f"Class name {place} of {len(names)} is empty; remove it, or complete it.")
        if len(name) > MOST_CHARACTERS:
            raise LmrError(
                f"The class name {name[:_SHOWN]!r}... has {len(name):,} characters; shorten it to {MOST_CHARACTERS} or "
                "fewer."
            )
        if name.strip().casefold() in RESERVED:
            raise LmrError(
                f"The class name {name!r} is reserved: answers say it of an image that belongs to no class; rename it."
            )
        if not name.isprintable() and (control := next(filter(_is_control, name), None)):
            raise LmrError(f"The class name {name!r} has the control character U+{ord(control):04X}; remove it.")
    if sum(map(len, names)) > MOST_IN_ALL:
        raise LmrError(f"The class names have more than {MOST_IN_ALL:,} characters together; shorten them.")


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter) in _CONTROLS or unicodedata.bidirectional(letter) in _DIRECTIONS
