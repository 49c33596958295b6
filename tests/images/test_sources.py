"""Sources in their order, each once; videos frame by frame, without what is finished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmr.core.errors import LmrError
from lmr.images.files import UnreadableImage
from lmr.images.sources import ImagePlace, iterate_images, list_sources
from video_maker import cut_file, paint, write_video


def test_sources_of_all_kinds_in_order_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    for name in ("a/2.png", "a/10.png", "b.png", "odd.xyz"):
        Image.new("RGB", (4, 4)).save(name, "PNG")
    write_video(Path("a/clip.avi"), paint(2))
    Path("a/list.csv").write_text("path,x\n10.png,1\n../b.png,2\nmissing.png,3\nclip.avi,4\n")
    assert list(map(str, list_sources(["b.png", "a", "a/list.csv", "odd.xyz"]))) == [
        "b.png", "a/2.png", "a/10.png", "a/missing.png", "a/clip.avi", "odd.xyz",
    ]  # fmt: skip
    assert list(map(str, list_sources(["a/list.csv", "b.png"])))[1] == "a/../b.png"
    with pytest.raises(LmrError, match="one column 'y'"):
        list_sources(["a/list.csv"], "y")
    with pytest.raises(LmrError, match=r"There is no file or folder 'none\.csv'"):
        list_sources(["none.csv"])


def test_frames_come_one_by_one_without_those_that_are_finished(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "a.png")
    video = write_video(tmp_path / "v.avi", paint(5))
    paths = [tmp_path / "a.png", video, tmp_path / "missing.png"]
    items = list(iterate_images(paths, 2))
    assert [item.place for item in items] == [
        ImagePlace(paths[0]), ImagePlace(video, 0, 0.0), ImagePlace(video, 2, 0.2), ImagePlace(video, 4, 0.4),
        ImagePlace(paths[2]),
    ]  # fmt: skip
    assert items[0].open().getpixel((0, 0)) == (255, 0, 0)
    frame = np.asarray(items[3].open()).astype(int)
    assert np.abs(frame - (16, 200, 60)).max() < 12
    with pytest.raises(UnreadableImage, match="there is no such file"):
        items[4].open()
    finished = {item.place.key for item in items[:3]}
    assert [item.place for item in iterate_images(paths, 2, finished)] == [item.place for item in items[3:]]
    assert str(items[2].place) == f"frame 2 of {str(video)!r}"
    assert str(items[0].place) == repr(str(paths[0]))


def test_stopped_is_the_end_of_all_files(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    video = write_video(tmp_path / "v.avi", paint(5))
    seen: list[ImagePlace] = []
    for item in iterate_images([tmp_path / "a.png", video, tmp_path / "a.png"], is_stopped=lambda: len(seen) == 3):
        seen.append(item.place)
    assert seen == [ImagePlace(tmp_path / "a.png"), ImagePlace(video, 0, 0.0), ImagePlace(video, 1, 0.1)]


def test_an_error_of_a_whole_video_is_its_last_item(tmp_path: Path) -> None:
    video = cut_file(write_video(tmp_path / "v.avi", paint(200, (96, 128))), 0.6)
    *frames, last = iterate_images([video])
    assert all(item.place.frame is not None for item in frames)
    assert last.place == ImagePlace(video)
    with pytest.raises(UnreadableImage, match="ends after"):
        last.open()
    assert list(iterate_images([video], finished={last.place.key})) == []
