"""Images whose bytes are in a column of a .parquet file."""

from __future__ import annotations

import bisect
import importlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image

from lmr.core.errors import LmrError
from lmr.images.image_files import UnreadableImage, decode_image
from lmr.images.remote_files import describe_trouble, is_url, open_remote

GROUPS_KEPT = 2  # row groups in memory, of each file: images are read in order


@dataclass(frozen=True)
class RowImage:
    """An image in a row of a .parquet file, counted from 1; as text it is FILE#ROW."""

    source: str
    column: str
    row: int

    def open(self) -> Image.Image:
        """The image as RGB; raises UnreadableImage if it cannot be read."""
        try:
            content = _open_column(self.source, self.column).read(self.row - 1)
        except (LmrError, OSError, _import_arrow().ArrowException) as error:
            raise UnreadableImage(f"Cannot read {str(self)!r}: {describe_trouble(error)}.") from error
        if not isinstance(content, bytes):
            raise UnreadableImage(f"Cannot read {str(self)!r}: the row has no image.")
        return decode_image(content, name=repr(str(self)))

    def __str__(self) -> str:
        return f"{self.source}#{self.row}"


def holds_bytes(kind: Any) -> bool:
    """Whether an Arrow type is that of images: bytes, or the bytes and the path that the Hugging Face hub stores."""
    types = _import_arrow().types
    if types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and holds_bytes(kind.field(place).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


class _Column:
    """A column of a file, of which a few row groups are in memory. Several threads may read it."""

    def __init__(self, source: str, column: str) -> None:
        parquet = importlib.import_module("pyarrow.parquet")
        self.file = parquet.ParquetFile(open_remote(source) if is_url(source) else source)
        self.column = column
        self.starts = [0]
        for group in range(self.file.num_row_groups):
            self.starts.append(self.starts[-1] + self.file.metadata.row_group(group).num_rows)
        self.groups: OrderedDict[int, Any] = OrderedDict()
        self.lock = threading.Lock()

    def read(self, row: int) -> object:
        with self.lock:
            if not 0 <= row < self.starts[-1]:
                raise OSError(f"the file has {self.starts[-1]} rows now; it was replaced")
            group = bisect.bisect_right(self.starts, row) - 1
            if group not in self.groups:
                while len(self.groups) >= GROUPS_KEPT:
                    self.groups.popitem(last=False)
                self.groups[group] = self.file.read_row_group(group, columns=[self.column]).column(0)
            value = self.groups[group][row - self.starts[group]].as_py()
        return value.get("bytes") if isinstance(value, dict) else value


@lru_cache(4)
def _open_column(source: str, column: str) -> _Column:
    return _Column(source, column)


def _import_arrow() -> Any:
    return importlib.import_module("pyarrow")
