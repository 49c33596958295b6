"""Tables as aligned plain text, for terminals and text files."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)  # a line of hyphens below the header alone


def format_table(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return rows of cells in columns, with a rule below the first row.

    Args:
        rows: Cells, the header first; all rows have the same length.
        texts: The number of columns that are aligned to the left; the others are aligned to the right.
    """
    table = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    for place, cell in enumerate(rows[0]):
        table.add_column(Text(cell), justify="left" if place < texts else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    screen = io.StringIO()
    Console(file=screen, width=100_000, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in screen.getvalue().splitlines())
