"""Compare what a page shows with what its code prints."""

from __future__ import annotations

import math
import re

DECIMAL = r"-?\d+\.\d+"


def agree(shown: str, printed: str) -> bool:
    """Return True if a page may show this for what was printed."""
    pattern, numbers = "", []
    for part in re.split(rf"(\.\.\.|{DECIMAL})", squeeze(shown)):
        if part == "...":
            pattern += ".*?"
        elif re.fullmatch(DECIMAL, part):
            pattern += f"({DECIMAL})"
            numbers.append(float(part))
        else:
            pattern += re.escape(part)
    match = re.fullmatch(pattern, squeeze(printed), re.DOTALL)
    return match is not None and all(map(is_near, numbers, map(float, match.groups())))


def squeeze(text: str) -> str:
    """Return a text without the width of columns."""
    return re.sub(" +", " ", text).strip()


def is_near(shown: float, printed: float) -> bool:
    """Return True if the difference may be that of an image more or less."""
    return math.isclose(shown, printed, rel_tol=0.03, abs_tol=0.5)
