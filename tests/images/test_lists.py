"""Lists of images: the column, paths relative to the list, images in rows, and a message for every unusable list."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from lmr.core.errors import LmrError
from lmr.images.files import UnreadableImage
from lmr.images.lists import is_list, read_column, read_path_list
from lmr.images.remote import RemoteImage
from lmr.images.sources import iterate_images, list_sources


def write_list(path: Path, columns: dict[str, list[Any]]) -> Path:
    """The same columns in either format."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        rows = [
            ",".join(columns),
            *(",".join("" if c is None else str(c) for c in row) for row in zip(*columns.values(), strict=True)),
        ]
        path.write_text("\n".join(rows) + "\n")
    return path


both = pytest.mark.parametrize("name", ["list.csv", "list.parquet"])


@both
@pytest.mark.parametrize("column", ["path", "file_name", "filename", "file", "image", "image_path"])
def test_the_usual_columns_are_found(name: str, column: str, tmp_path: Path) -> None:
    source = write_list(tmp_path / name, {"id": [1, 2], column: ["a.png", "deep/b c.png"], "label": ["x", "y"]})
    assert read_path_list(source) == [tmp_path / "a.png", tmp_path / "deep/b c.png"]


@both
def test_a_column_by_its_name(name: str, tmp_path: Path) -> None:
    source = write_list(tmp_path / name, {"path": ["a.png"], "other": ["/b.png"]})
    assert read_path_list(source, "other") == [Path("/b.png")]
    assert read_path_list(source) == [tmp_path / "a.png"]
    with pytest.raises(LmrError, match=r"has no column 'thing'; its columns are: path, other\."):
        read_path_list(source, "thing")


@both
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": ["x"], "b": ["y"]}, r"no column that is known to hold paths; choose one with --column .*: a, b\)"),
        ({"path": ["x"], "image": ["y"]}, r"several columns that may hold the paths; choose .*: path, image\)"),
        ({"id": [1, 2], "path": ["a.png", None]}, r"(Line 3|Row 2) of the list .* has no path"),
        ({"id": [1, 2], "path": ["a.png", " "]}, r"(Line 3|Row 2) of the list .* has no path"),
        ({"id": [], "path": []}, "contains no paths"),
    ],
)
def test_unclear_lists_get_a_message(name: str, columns: Any, words: str, tmp_path: Path) -> None:
    source = write_list(tmp_path / name, columns)
    with pytest.raises(LmrError, match=words):
        read_path_list(source)


@both
def test_damaged_and_empty_files_get_a_message(name: str, tmp_path: Path) -> None:
    source = tmp_path / name
    for content in (b"", b"\xff\xfe\x00 no list", b'path\n"never closed\n'):
        source.write_bytes(content)
        with pytest.raises(LmrError, match=r"is empty|Cannot read the list|is not a complete parquet file"):
            read_path_list(source)


def test_csv_details(tmp_path: Path) -> None:
    source = tmp_path / "LIST.CSV"
    source.write_bytes('\ufeffid,path\r\n1,"a, b.png"\r\n\r\n2,"größe ""1"".png"\r\n'.encode())
    assert read_path_list(source) == [tmp_path / "a, b.png", tmp_path / 'größe "1".png']
    source.write_text("one.png\ntwo.jpg\nclip.mp4\nsomething\n")  # without a header: one path per line
    assert [path.name for path in read_path_list(source)] == ["one.png", "two.jpg", "clip.mp4", "something"]
    source.write_text("one\ntwo\n")
    with pytest.raises(LmrError, match=r"no column that is known to hold paths; .*its columns are: one\)"):
        read_path_list(source)
    source.write_text("id,path\n1\n")
    with pytest.raises(LmrError, match="Line 2 of the list"):
        read_path_list(source)


def test_list_without_column_names_has_one_path_per_line(tmp_path: Path) -> None:
    source = tmp_path / "list.csv"
    source.write_text('one.png\n"a, b.png"\n')
    assert read_path_list(source) == [tmp_path / "one.png", tmp_path / "a, b.png"]
    source.write_text("one.png\na, b.png\n")
    with pytest.raises(LmrError, match=r"Expected one path in line 2 .* got 2 cells; put paths with commas in quotes"):
        read_path_list(source)


@both
def test_two_columns_of_one_name_get_a_message(name: str, tmp_path: Path) -> None:
    source = tmp_path / name
    if name.endswith(".csv"):
        source.write_text("path,path\na.png,b.png\n")
    else:
        pyarrow.parquet.write_table(pyarrow.table([["a.png"], ["b.png"]], names=["path", "path"]), source)
    with pytest.raises(LmrError, match="has several columns 'path'; rename all but one"):
        read_path_list(source, "path")


def test_parquet_of_other_values_gets_a_message(tmp_path: Path) -> None:
    source = write_list(tmp_path / "list.parquet", {"image": [{"size": 3}]})
    with pytest.raises(LmrError, match=r"Expected paths as texts in the column 'image' .*got dict in row 1"):
        read_path_list(source)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_list(tmp_path / "list.parquet", {"path": ["a.png"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LmrError, match=r"needs pyarrow; install it with: pip install 'lmr\[parquet\]'"):
        read_path_list(source)


def test_lists_are_recognised_by_their_names() -> None:
    assert is_list("a.csv")
    assert is_list(Path("b.PARQUET"))
    assert not is_list("a.tsv")


@both
def test_another_column_row_by_row(name: str, tmp_path: Path) -> None:
    source = write_list(tmp_path / name, {"path": ["a.png", "b.png"], "camera": [7, 8]})
    assert read_column(source, "camera", "stream", numbers=True) == ["7", "8"]
    with pytest.raises(LmrError, match=r"has no column 'cam'; its columns are: path, camera\."):
        read_column(source, "cam", "stream", numbers=True)


def test_addresses_in_lists_and_lists_at_addresses(tmp_path: Path) -> None:
    source = write_list(tmp_path / "list.csv", {"path": ["s3://b/x.png", "a.png"]})
    assert read_path_list(source) == [RemoteImage("s3://b/x.png"), tmp_path / "a.png"]
    url = source.as_uri()
    assert read_path_list(url) == [RemoteImage("s3://b/x.png"), RemoteImage(f"{tmp_path.as_uri()}/a.png")]
    with pytest.raises(LmrError, match=r"Cannot read the list 'file:.*no.csv'"):
        read_path_list(f"{tmp_path.as_uri()}/no.csv")
    table = write_list(tmp_path / "list.parquet", {"path": ["a.png"]})
    assert read_path_list(table.as_uri()) == [RemoteImage(f"{tmp_path.as_uri()}/a.png")]


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


def test_rows_without_an_image_get_a_message(tmp_path: Path) -> None:
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
