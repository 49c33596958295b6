"""Lists of image paths in .csv and .parquet files."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.images.image_files import EXTENSIONS
from lmr.images.video_files import VIDEO_EXTENSIONS

LIST_EXTENSIONS: tuple[str, ...] = (".csv", ".parquet")
COLUMNS: tuple[str, ...] = ("path", "file_name", "filename", "file", "image", "image_path")  # what lists call it


def is_list(path: str | os.PathLike[str]) -> bool:
    """Whether the name is that of a list of paths."""
    return os.fspath(path).lower().endswith(LIST_EXTENSIONS)


def read_path_list(source: Path, column: str | None = None) -> list[Path]:
    """The paths in one column of a list, in order; relative ones are relative to the folder of the list.

    Without ``column`` it is the only one of COLUMNS that the list has. A .csv file begins with a line of column names,
    or holds one path per line and nothing else. Whether the files exist is not checked. Raises LmrError.
    """
    try:
        cells = _read_parquet(source, column) if source.suffix.lower() == ".parquet" else _read_csv(source, column)
    except OSError as error:
        raise LmrError(f"Cannot read the list {str(source)!r}: {error.strerror or error}.") from error
    paths = []
    for place, cell in cells:
        if cell is None or not cell.strip():
            raise LmrError(f"{place} of the list {str(source)!r} has no path; complete the list, or remove the row.")
        paths.append(source.parent / cell)
    if not paths:
        raise LmrError(f"The list {str(source)!r} contains no paths.")
    return paths


def choose_column(names: Sequence[str], column: str | None, source: Path) -> str:
    """The column that holds the paths."""
    listed = f"its columns are: {', '.join(names)}" if names else "it has no columns"
    if column is not None:
        if column not in names:
            raise LmrError(f"The list {str(source)!r} has no column {column!r}; {listed}.")
        if names.count(column) > 1:
            raise LmrError(f"The list {str(source)!r} has several columns {column!r}; rename all but one of them.")
        return column
    known = [name for name in names if name in COLUMNS]
    if len(known) == 1:
        return known[0]
    problem = "several columns that may hold the paths" if known else "no column that is known to hold paths"
    raise LmrError(f"The list {str(source)!r} has {problem}; choose one with --column ({listed}).")


def _read_csv(source: Path, column: str | None) -> list[tuple[str, str | None]]:
    """The cells of the column, each with the number of its line."""
    try:
        with open(source, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            lines = [(rows.line_num, row) for row in rows if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise LmrError(f"Cannot read the list {str(source)!r}: {error}; save it as .csv in UTF-8.") from error
    if not lines:
        raise LmrError(f"The list {str(source)!r} is empty.")
    names = lines[0][1]
    if column is None and len(names) == 1 and names[0].lower().endswith(EXTENSIONS + VIDEO_EXTENSIONS):
        place = 0  # there is no line of column names: one path per line
        for number, row in lines:
            if len(row) > 1:
                raise LmrError(
                    f"Expected one path in line {number} of the list {str(source)!r}, which has no column names, got "
                    f"{len(row)} cells; put paths with commas in quotes."
                )
    else:
        place = names.index(choose_column(names, column, source))
        del lines[0]
    return [(f"Line {number}", row[place] if place < len(row) else None) for number, row in lines]


def _read_parquet(source: Path, column: str | None) -> list[tuple[str, str | None]]:
    """The cells of the column, each with the number of its row; other columns are not read."""
    try:
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError as error:
        raise LmrError(
            f"Reading {str(source)!r} needs the package pyarrow (pip install 'lmr[parquet]'); or save it as .csv."
        ) from error
    try:
        chosen = choose_column(parquet.read_schema(source).names, column, source)
        values: Iterable[object] = parquet.read_table(source, columns=[chosen]).column(0).to_pylist()
    except arrow.ArrowException as error:
        raise LmrError(f"{str(source)!r} is not a complete parquet file ({error}).") from error
    cells: list[tuple[str, str | None]] = []
    for number, value in enumerate(values, 1):
        if value is not None and not isinstance(value, str):
            raise LmrError(
                f"Expected paths as texts in the column {chosen!r} of {str(source)!r}, got {type(value).__name__} in "
                f"row {number}; choose another one with --column."
            )
        cells.append((f"Row {number}", value))
    return cells
