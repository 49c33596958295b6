"""Lists of images: .csv files with a column of paths."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.images.files import EXTENSIONS
from lmr.images.video import VIDEO_EXTENSIONS

COLUMNS: tuple[str, ...] = ("path", "file_name", "filename", "file", "image", "image_path")  # usual names of paths
_QUOTE = "put cells with commas, quotes or line breaks in double quotes, and double the quotes inside"


def is_list(path: str | os.PathLike[str]) -> bool:
    """Return True for the name of a list of images."""
    return os.fspath(path).lower().endswith(".csv")


def read_path_list(source: Path, column: str | None = None) -> list[Path]:
    """Return the paths in one column of a list, in order; they are relative to the folder of the list.

    The default of ``column`` is the only one of COLUMNS that the list has. The file begins with a line of column names,
    or contains one path per line and nothing else. The files of the paths need not exist. Raises LmrError.
    """
    return [source.parent / cell for cell in read_column(source, column, "path")]


def read_column(source: Path, column: str | None, meaning: str) -> list[str]:
    """Return the cells of one column of a list, in order. Raises LmrError, also for an empty cell.

    ``meaning`` names the cells in errors.
    """
    rows = _read_rows(source)
    names = rows[0] if rows else []
    if column is None and len(names) == 1 and names[0].lower().endswith(EXTENSIONS + VIDEO_EXTENSIONS):
        names, place = [""], 0  # there is no line of column names: one path per line
    else:
        place = names.index(_choose_column(names, column, source))
        del rows[0]
    for number, row in enumerate(rows, 1):
        if place >= len(row) or any(row[len(names) :]):
            more = "fewer" if place >= len(row) else "more"
            raise LmrError(f"Row {number} of the list {str(source)!r} has {more} cells than the header; {_QUOTE}.")
        if not row[place].strip():
            raise LmrError(
                f"Row {number} of the list {str(source)!r} has no {meaning}; complete the list, or remove the row."
            )
    if not rows:
        raise LmrError(f"The list {str(source)!r} contains no {meaning}s.")
    return [row[place] for row in rows]


def _choose_column(names: Sequence[str], column: str | None, source: Path) -> str:
    """Return the column with the paths. Raises LmrError."""
    chosen = [name for name in names if (name in COLUMNS if column is None else name == column)]
    if len(chosen) == 1:
        return chosen[0]
    wanted = "one column of paths" if column is None else f"one column {column!r}"
    raise LmrError(
        f"Expected {wanted} in the list {str(source)!r}, got {len(chosen)}; its columns are: "
        f"{', '.join(names) or 'none'}. Choose one with --column."
    )


def _read_rows(source: Path) -> list[list[str]]:
    """Return the rows that are not empty."""
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            return [row for row in csv.reader(file, skipinitialspace=True, strict=True) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LmrError(
            f"Cannot read the list {str(source)!r}: {error}; save it as .csv in UTF-8, and {_QUOTE}."
        ) from error
