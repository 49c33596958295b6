"""Which images belong to one stream, and how streams are shared out."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmr.apps.predict.image_streams import ImageStream, make_shards, split_streams
from lmr.core.errors import LmrError
from predict_runs import draw_pictures


@pytest.fixture
def cameras(here: Path) -> Path:
    """Two folders of images that exist, under a folder."""
    Path("cams").mkdir()
    draw_pictures(Path("cams/b"), range(2))
    draw_pictures(Path("cams/a"), range(3))
    return here


def describe(streams: list[ImageStream]) -> dict[str, list[str]]:
    assert [stream.number for stream in streams] == list(range(len(streams)))
    return {stream.name: list(map(str, stream.images)) for stream in streams}


def test_folder_is_the_one_that_holds_the_image(cameras: Path) -> None:
    assert describe(split_streams(["cams"], "folder")) == {
        "cams/a": ["cams/a/img0.png", "cams/a/img1.png", "cams/a/img2.png"],
        "cams/b": ["cams/b/img0.png", "cams/b/img1.png"],
    }
    assert describe(split_streams(["cams/b/img1.png", "cams/a", "cams/b"], "folder")) == {
        "cams/b": ["cams/b/img1.png", "cams/b/img0.png"],
        "cams/a": ["cams/a/img0.png", "cams/a/img1.png", "cams/a/img2.png"],
    }


def test_expression_gathers_images_from_several_folders(cameras: Path) -> None:
    assert describe(split_streams(["cams"], r"img(\d)")) == {
        "0": ["cams/a/img0.png", "cams/b/img0.png"],
        "1": ["cams/a/img1.png", "cams/b/img1.png"],
        "2": ["cams/a/img2.png"],
    }


def test_column_of_a_list(cameras: Path) -> None:
    Path("list.csv").write_text("path,camera\ncams/b/img0.png,2\ncams/a/img0.png,1\ncams/b/img0.png,1\nno.png,2\n")
    assert describe(split_streams(["list.csv"], "column:camera")) == {
        "2": ["cams/b/img0.png", "no.png"],
        "1": ["cams/a/img0.png"],
    }


@pytest.mark.parametrize(
    ("stream_by", "sentence"),
    [
        ("(", r"Expected folder, column:NAME or a regular expression for --stream-by, got '\('"),
        ("cam", r"a regular expression with one group .* got 'cam', which has 0 groups"),
        ("(a)(b)", "which has 2 groups"),
        ("(b)/img", r"finds no stream in the path 'cams/a/img0\.png'; change the expression"),
        ("column:x", r"--stream-by column:x is for \.csv and \.parquet lists, and 'cams' is none"),
    ],
)
def test_unclear_streams_are_refused(cameras: Path, stream_by: str, sentence: str) -> None:
    with pytest.raises(LmrError, match=sentence):
        split_streams(["cams"], stream_by)


def test_column_that_is_missing_or_empty_is_refused(here: Path) -> None:
    Path("list.csv").write_text("path,camera\na.png,1\nb.png,\n")
    with pytest.raises(LmrError, match=r"Line 3 of the list 'list\.csv' has no stream"):
        split_streams(["list.csv"], "column:camera")
    with pytest.raises(LmrError, match="has no column 'cam'"):
        split_streams(["list.csv"], "column:cam")


def test_shards_have_about_as_many_images_and_every_stream_once() -> None:
    sizes = [5, 1, 1, 9, 3, 3]
    streams = [ImageStream(number, str(number), (Path("x"),) * size) for number, size in enumerate(sizes)]
    shards = make_shards(streams, 3)
    assert [shard.images for shard in shards] == [9, 7, 6]
    assert sorted(stream.number for shard in shards for stream in shard.streams) == list(range(6))
    assert make_shards(reversed(streams), 3) == shards
    assert len(make_shards(streams, 100)) == 6
    assert [stream.number for stream in make_shards(streams, 1)[0].streams] == list(range(6))
