"""What commands print and write: text in columns, and a look at the folder before the work begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.state import write_atomically


def check_folder(folder: Path, names: Iterable[str]) -> None:
    """Make the folder and see that these files can be written, before minutes go into what they are to hold."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LmrError(f"Cannot make the folder {str(folder)!r}: {error.strerror}.") from error
    write_atomically(folder / ".probe", b"")
    (folder / ".probe").unlink()
    for name in names:
        if (folder / name).is_dir():
            raise LmrError(f"{str(folder / name)!r} is a folder where a file is to go; give another --out.")


def align(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns, the first to the left and the others to the right, with a rule under the head."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    text = []
    for first, *rest in lines:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        text.append("  ".join([first.ljust(widths[0]), *cells]))
    text.insert(1, "-" * len(text[0]))
    return "\n".join(text)
