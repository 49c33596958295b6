"""Text in columns, for tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def align(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns, the first aligned left and the others right, with a rule under the first line."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    text = []
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        text.append("  ".join([first.ljust(widths[0]), *cells]))
    text.insert(1, "-" * len(text[0]))
    return "\n".join(text)
