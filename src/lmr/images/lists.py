"""Lists of images in .csv and .parquet files: paths, addresses, or the bytes of the images themselves."""

from __future__ import annotations

import bisect
import csv
import io
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from PIL import Image

from lmr.core.errors import LmrError
from lmr.core.extras import require
from lmr.images.files import EXTENSIONS, UnreadableImage, decode_image
from lmr.images.remote import RemoteImage, explain_error, is_url, open_remote
from lmr.images.video import VIDEO_EXTENSIONS

LIST_EXTENSIONS: tuple[str, ...] = (".csv", ".parquet")
COLUMNS: tuple[str, ...] = ("path", "file_name", "filename", "file", "image", "image_path")  # usual names of paths
BYTES_COLUMN = "bytes"
_QUOTE = "put cells with commas, quotes or line breaks in double quotes, and double the quotes inside"
GROUPS_KEPT = 4  # row groups in memory: images are read in order
_READING = threading.Lock()
ListSource = Path | str  # a file, or an address


@dataclass(frozen=True)
class RowImage:
    """An image in a row of a .parquet file, counted from 1; as text it is FILE#ROW."""

    source: str
    column: str
    row: int

    def open(self) -> Image.Image:
        """Return the image as RGB. Raises UnreadableImage."""
        try:
            content = _read_row(self.source, self.column, self.row - 1)
        except (LmrError, OSError, _import_arrow(self.source).ArrowException) as error:
            raise UnreadableImage(f"Cannot read {str(self)!r}: {explain_error(error)}.") from error
        if not isinstance(content, bytes):
            raise UnreadableImage(f"Cannot read {str(self)!r}: the row has no image.")
        return decode_image(content, name=repr(str(self)))

    def __str__(self) -> str:
        return f"{self.source}#{self.row}"


ListedImage = Path | RemoteImage | RowImage


def is_list(path: str | os.PathLike[str]) -> bool:
    """Return True for the name of a list of images."""
    return os.fspath(path).lower().endswith(LIST_EXTENSIONS)


def read_path_list(source: ListSource, column: str | None = None) -> list[ListedImage]:
    """Return the images in one column of a list, in order; paths are relative to the folder of the list.

    The default of ``column`` is the only one of COLUMNS that the list has, or else the column "bytes" of a .parquet
    file. A .csv file begins with a line of column names, or contains one path per line and nothing else. The files need
    not exist. Raises LmrError.
    """
    if _is_parquet(source):
        with _open_parquet_list(source, column) as (file, column):
            kind, rows = file.schema_arrow.field(column).type, file.metadata.num_rows
        if _holds_bytes(_import_arrow(source).types, kind):
            if not rows:
                raise LmrError(f"The list {str(source)!r} contains no images.")
            return [RowImage(str(source), column, row) for row in range(1, rows + 1)]
    return [_locate(source, cell) for cell in read_column(source, column, "path")]


def read_column(source: ListSource, column: str | None, meaning: str, numbers: bool = False) -> list[str]:
    """Return the cells of one column of a list, in order. Raises LmrError, also for an empty cell.

    ``meaning`` names the cells in errors. With ``numbers``, a .parquet file may contain whole numbers, which become
    texts.
    """
    cells = _read_parquet(source, column, meaning, numbers) if _is_parquet(source) else _read_csv(source, column)
    for place, cell in cells:
        if cell is None or not cell.strip():
            raise LmrError(
                f"{place} of the list {str(source)!r} has no {meaning}; complete the list, or remove the row."
            )
    if not cells:
        raise LmrError(f"The list {str(source)!r} contains no {meaning}s.")
    return [cell for _, cell in cells if cell is not None]


def _locate(source: ListSource, cell: str) -> Path | RemoteImage:
    """Return the place of the image in a cell."""
    if is_url(cell):
        return RemoteImage(cell)
    if isinstance(source, Path):
        return source.parent / cell
    return RemoteImage(f"{source.rpartition('/')[0]}/{cell}")


def _is_parquet(source: ListSource) -> bool:
    return str(source).lower().endswith(".parquet")


def _open_list(source: ListSource) -> IO[bytes]:
    return open(source, "rb") if isinstance(source, Path) else open_remote(source)


def choose_column(names: Sequence[str], column: str | None, source: ListSource) -> str:
    """Return the column with the paths. Raises LmrError."""
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
    """Return the cells of the column, each with its line."""
    last = 0
    lines: list[tuple[int, list[str]]] = []
    try:
        with _open_list(source) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, skipinitialspace=True, strict=True)
            for row in rows:
                last = rows.line_num
                lines += [(last, row)] if row else []
    except UnicodeDecodeError as error:
        raise LmrError(f"Cannot read the list {str(source)!r}: {error}; save it as .csv in UTF-8.") from error
    except OSError as error:
        raise _refuse(source, error) from error
    except csv.Error as error:
        raise LmrError(
            f"Cannot read the list {str(source)!r}: line {last + 1} does not begin a row ({error}); {_QUOTE}."
        ) from error
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
        for number, row in lines:
            if place >= len(row) or any(row[len(names) :]):
                more = "fewer" if place >= len(row) else "more"
                raise LmrError(f"Line {number} of the list {str(source)!r} has {more} cells than the header; {_QUOTE}.")
    return [(f"Line {number}", row[place]) for number, row in lines]


@contextmanager
def _open_parquet_list(source: ListSource, column: str | None) -> Iterator[tuple[Any, str]]:
    """Open a list within this context, with the name of the column of the images."""
    arrow = _import_arrow(source)
    try:
        with _open_list(source) as opened:
            file = arrow.parquet.ParquetFile(opened)
            names = file.schema_arrow.names
            if column is None and BYTES_COLUMN in names and not {*names} & {*COLUMNS}:
                column = BYTES_COLUMN
            yield file, choose_column(names, column, source)
    except arrow.ArrowException as error:
        raise LmrError(f"{str(source)!r} is not a complete parquet file ({error}).") from error
    except OSError as error:
        raise _refuse(source, error) from error


def _refuse(source: ListSource, error: OSError) -> LmrError:
    return LmrError(f"Cannot read the list {str(source)!r}: {error.strerror or explain_error(error)}.")


def _read_parquet(source: ListSource, column: str | None, meaning: str, numbers: bool) -> list[tuple[str, str | None]]:
    """Return the cells of the column, each with its row; other columns are not read."""
    with _open_parquet_list(source, column) as (file, chosen):
        values: Iterable[object] = file.read(columns=[chosen]).column(0).to_pylist()
    cells: list[tuple[str, str | None]] = []
    for number, value in enumerate(values, 1):
        if value is not None and not isinstance(value, str | int if numbers else str):
            raise LmrError(
                f"Expected {meaning}s as texts in the column {chosen!r} of {str(source)!r}, got {type(value).__name__} "
                f"in row {number}; choose another column."
            )
        cells.append((f"Row {number}", None if value is None else str(value)))
    return cells


def _import_arrow(source: ListSource) -> Any:
    require("pyarrow.parquet", "parquet", f"Reading {str(source)!r}")
    return require("pyarrow", "parquet", f"Reading {str(source)!r}")


def _holds_bytes(types: Any, kind: Any) -> bool:
    """Return True for the Arrow types of images: bytes, or the struct of bytes and path of the Hugging Face hub."""
    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _holds_bytes(types, kind.field(place).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _read_row(source: str, column: str, row: int) -> object:
    """Return the value in a row, counted from 0; several threads may read."""
    with _READING:
        starts = _open_parquet(source)[1]
        if not 0 <= row < starts[-1]:
            raise OSError(f"the file has {starts[-1]} rows now; it was replaced")
        group = bisect.bisect_right(starts, row) - 1
        value = _read_group(source, column, group)[row - starts[group]].as_py()
    return value.get("bytes") if isinstance(value, dict) else value


@lru_cache(4)
def _open_parquet(source: str) -> tuple[Any, list[int]]:
    """Return a file, and the rows at which its groups begin and end."""
    file = _import_arrow(source).parquet.ParquetFile(open_remote(source) if is_url(source) else source)
    sizes = (file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
    return file, list(itertools.accumulate(sizes, initial=0))


@lru_cache(GROUPS_KEPT)
def _read_group(source: str, column: str, group: int) -> Any:
    return _open_parquet(source)[0].read_row_group(group, columns=[column]).column(0)
