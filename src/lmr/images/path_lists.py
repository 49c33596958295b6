"""Lists of images in .csv and .parquet files: of their paths, of their addresses, or of their bytes."""

from __future__ import annotations

import csv
import importlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from lmr.core.errors import LmrError
from lmr.images.image_files import EXTENSIONS
from lmr.images.remote_files import RemoteImage, describe_trouble, is_url, open_remote
from lmr.images.row_images import RowImage, holds_bytes
from lmr.images.video_files import VIDEO_EXTENSIONS

LIST_EXTENSIONS: tuple[str, ...] = (".csv", ".parquet")
COLUMNS: tuple[str, ...] = ("path", "file_name", "filename", "file", "image", "image_path")  # what lists call it
BYTES_COLUMN = "bytes"
ListSource = Path | str  # a file, or an address
ListedImage = Path | RemoteImage | RowImage


def is_list(path: str | os.PathLike[str]) -> bool:
    """Whether the name is that of a list of paths."""
    return os.fspath(path).lower().endswith(LIST_EXTENSIONS)


def read_path_list(source: ListSource, column: str | None = None) -> list[ListedImage]:
    """The images in one column of a list, in order; relative paths are relative to the folder of the list.

    Without ``column`` it is the only one of COLUMNS that the list has, or else the column "bytes" of a .parquet file. A
    .csv file begins with a line of column names, or holds one path per line and nothing else. Whether the files exist
    is not checked. Raises LmrError.
    """
    if _is_parquet(source):
        chosen, kind, rows = _examine_parquet(source, column)
        if holds_bytes(kind):
            if not rows:
                raise LmrError(f"The list {str(source)!r} contains no images.")
            return [RowImage(str(source), chosen, row) for row in range(1, rows + 1)]
        column = chosen
    return [_locate(source, cell) for cell in read_column(source, column, "path")]


def read_column(source: ListSource, column: str | None, meaning: str, numbers: bool = False) -> list[str]:
    """The cells of one column of a list, in order, none of them empty; an error calls them by their ``meaning``.

    With ``numbers`` they may be whole numbers in a .parquet file, which become texts.
    """
    try:
        cells = _read_parquet(source, column, meaning, numbers) if _is_parquet(source) else _read_csv(source, column)
    except OSError as error:
        raise LmrError(f"Cannot read the list {str(source)!r}: {_explain(error)}.") from error
    for place, cell in cells:
        if cell is None or not cell.strip():
            raise LmrError(
                f"{place} of the list {str(source)!r} has no {meaning}; complete the list, or remove the row."
            )
    if not cells:
        raise LmrError(f"The list {str(source)!r} contains no {meaning}s.")
    return [cell for _, cell in cells if cell is not None]


def _locate(source: ListSource, cell: str) -> Path | RemoteImage:
    """Where the image of a cell is."""
    if is_url(cell):
        return RemoteImage(cell)
    if isinstance(source, Path):
        return source.parent / cell
    return RemoteImage(f"{source.rpartition('/')[0]}/{cell}")


def _is_parquet(source: ListSource) -> bool:
    return str(source).lower().endswith(".parquet")


def _open_list(source: ListSource) -> IO[bytes]:
    return open(source, "rb") if isinstance(source, Path) else open_remote(source)


def _explain(error: OSError) -> str:
    return error.strerror or describe_trouble(error)


def choose_column(names: Sequence[str], column: str | None, source: ListSource) -> str:
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


def _read_csv(source: ListSource, column: str | None) -> list[tuple[str, str | None]]:
    """The cells of the column, each with the number of its line."""
    try:
        with _open_list(source) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as file:
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


def _examine_parquet(source: ListSource, column: str | None) -> tuple[str, Any, int]:
    """The column that holds the images, its type, and the number of rows."""
    arrow, parquet = _import_arrow(source)
    try:
        with _open_list(source) as file:
            opened = parquet.ParquetFile(file)
            schema, rows = opened.schema_arrow, opened.metadata.num_rows
    except arrow.ArrowException as error:
        raise LmrError(f"{str(source)!r} is not a complete parquet file ({error}).") from error
    except OSError as error:
        raise LmrError(f"Cannot read the list {str(source)!r}: {_explain(error)}.") from error
    if column is None and BYTES_COLUMN in schema.names and not {*schema.names} & {*COLUMNS}:
        column = BYTES_COLUMN
    chosen = choose_column(schema.names, column, source)
    return chosen, schema.field(chosen).type, rows


def _read_parquet(source: ListSource, column: str | None, meaning: str, numbers: bool) -> list[tuple[str, str | None]]:
    """The cells of the column, each with the number of its row; other columns are not read."""
    chosen, _, _ = _examine_parquet(source, column)
    arrow, parquet = _import_arrow(source)
    try:
        with _open_list(source) as file:
            values: Iterable[object] = parquet.read_table(file, columns=[chosen]).column(0).to_pylist()
    except arrow.ArrowException as error:
        raise LmrError(f"{str(source)!r} is not a complete parquet file ({error}).") from error
    cells: list[tuple[str, str | None]] = []
    for number, value in enumerate(values, 1):
        if value is not None and not isinstance(value, str | int if numbers else str):
            raise LmrError(
                f"Expected {meaning}s as texts in the column {chosen!r} of {str(source)!r}, got {type(value).__name__} "
                f"in row {number}; choose another column."
            )
        cells.append((f"Row {number}", None if value is None else str(value)))
    return cells


def _import_arrow(source: ListSource) -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise LmrError(
            f"Reading {str(source)!r} needs the package pyarrow (pip install 'lmr[parquet]'); or save it as .csv."
        ) from error
