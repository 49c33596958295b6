"""Lists of images: the column, paths relative to the list, and a message for every unusable list."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmr.core.errors import LmrError
from lmr.images.lists import COLUMNS, is_list, read_path_list


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "LIST.CSV"


@pytest.mark.parametrize("column", COLUMNS)
def test_the_usual_columns_are_found(source: Path, column: str) -> None:
    source.write_text(f"id,{column},label\n1,a.png,x\n2,deep/b c.png,y\n")
    assert is_list(source)
    assert read_path_list(source) == [source.parent / "a.png", source.parent / "deep/b c.png"]


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("path,other\na,b\n", "thing", "thing"),
        ("a,b\nx,y\n", None, "got 0"),
        ("path,image\nx,y\n", None, "got 2"),
        ("id,path\n1,a.png\n2,\n", None, "Row 2 of the list .* has no path"),
        ("id,path\n1\n", None, "Row 1 of the list .* fewer cells"),
        ("one.png\na, b.png\n", None, "Row 2 of the list .* more cells"),
        ("id,path\n", None, "contains no paths"),
        ('path\n"never closed\n', None, "Cannot read the list"),
    ],
)
def test_unusable_lists_get_a_message(source: Path, text: str, column: str | None, words: str) -> None:
    source.write_text(text)
    with pytest.raises(LmrError, match=words):
        read_path_list(source, column)


def test_quotes_marks_and_lists_without_column_names(source: Path) -> None:
    source.write_bytes('\ufeffid,path\r\n1,"a, b.png"\r\n\r\n2,"größe ""1"".png"\r\n'.encode())
    assert read_path_list(source) == [source.parent / "a, b.png", source.parent / 'größe "1".png']
    source.write_text('one.png\ntwo.jpg\nclip.mp4\n"a, b.png"\n')
    assert [path.name for path in read_path_list(source)] == ["one.png", "two.jpg", "clip.mp4", "a, b.png"]
