"""Images in the rows of .parquet files, read by row groups."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from lmr.core.errors import LmrError
from lmr.images.files import UnreadableImage
from lmr.images.lists import read_path_list
from lmr.images.sources import iterate_images, list_sources


def encode(shade: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(content, "PNG")
    return content.getvalue()


def read_shades(source: str | Path) -> list[object]:
    pixels = [item.open().getpixel((0, 0)) for item in iterate_images(list_sources([source]))]
    return [pixel[0] for pixel in pixels if isinstance(pixel, tuple)]


@pytest.mark.parametrize("hub", [False, True])
def test_images_of_several_row_groups_in_order(tmp_path: Path, hub: bool) -> None:
    source, shades = tmp_path / "t.parquet", list(range(7))
    cells = [encode(shade) for shade in shades]
    columns = {"image": [{"bytes": cell, "path": "x.png"} for cell in cells]} if hub else {"bytes": cells}
    pyarrow.parquet.write_table(pyarrow.table(columns | {"label": shades}), source, row_group_size=2)
    assert read_shades(source) == shades
    assert read_shades(source.as_uri()) == shades
    backwards = list(reversed(list_sources([source])))
    assert str(backwards[0]) == f"{source}#7"
    assert [item.open().getpixel((0, 0)) for item in iterate_images(backwards)] == [(k, k, k) for k in range(6, -1, -1)]


def test_paths_come_before_bytes_unless_the_column_is_named(tmp_path: Path) -> None:
    source = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"path": ["a.png"], "bytes": [encode(1)]}), source)
    assert read_path_list(source) == [tmp_path / "a.png"]
    assert str(read_path_list(source, "bytes")[0]) == f"{source}#1"


def test_rows_that_hold_no_image_say_so(tmp_path: Path) -> None:
    source = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"bytes": [encode(1), None, b"x"]}), source)
    first, empty, broken = iterate_images(list_sources([source]))
    first.open()
    with pytest.raises(UnreadableImage, match=r"Cannot read '.*t\.parquet#2': the row has no image"):
        empty.open()
    with pytest.raises(UnreadableImage, match=r"Cannot read '.*t\.parquet#3': it is not an image"):
        broken.open()
    pyarrow.parquet.write_table(pyarrow.table({"bytes": pyarrow.array([], pyarrow.binary())}), source)
    with pytest.raises(LmrError, match="contains no images"):
        list_sources([source])
