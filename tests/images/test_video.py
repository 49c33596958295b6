"""Frames of videos: their numbers, times and colours, and one error message for unreadable videos.

Frames of live video over a socket are tested with the sources of the camera.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from lmr.images import video
from lmr.images.files import UnreadableImage
from lmr.images.video import VideoFrame, is_live, read_frames
from video_maker import cut_file, paint, write_video


def read_until_error(path: Path, every: int = 1) -> tuple[list[VideoFrame], str]:
    frames: list[VideoFrame] = []
    with pytest.raises(UnreadableImage) as caught:
        frames.extend(read_frames(path, every))
    return frames, str(caught.value)


@pytest.mark.parametrize(("name", "code"), [("a.avi", "MJPG"), ("a.mp4", "mp4v")])
def test_frames_have_their_number_time_and_colours(name: str, code: str, tmp_path: Path) -> None:
    painted = paint(12)
    frames = list(read_frames(write_video(tmp_path / name, painted, 10.0, code)))
    assert [frame.number for frame in frames] == list(range(12))
    assert [frame.time for frame in frames] == [pytest.approx(number / 10, abs=1e-6) for number in range(12)]
    for frame, expected in zip(frames, painted, strict=True):
        assert frame.pixels is not None
        assert frame.pixels.shape == (32, 48, 3)
        assert np.abs(frame.pixels.astype(int) - expected).max() < 12  # red first; the codec loses a little


@pytest.mark.parametrize("every", [2, 5, 11, 100])
def test_every_nth_frame(every: int, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", paint(12))
    whole = list(read_frames(path))
    for frame in (some := list(read_frames(path, every))):
        assert frame.time == whole[frame.number].time
        assert np.array_equal(frame.pixels, whole[frame.number].pixels)  # type: ignore[arg-type]
    assert [frame.number for frame in some] == list(range(0, 12, every))
    unfinished = list(read_frames(path, every, lambda number: number >= 5))
    assert [frame.number for frame in unfinished] == [number for number in range(0, 12, every) if number >= 5]


def test_video_that_ends_early_gives_its_frames_first(tmp_path: Path) -> None:
    path = cut_file(write_video(tmp_path / "a.avi", paint(200, (96, 128))), 0.6)
    frames, message = read_until_error(path)
    assert 40 < len(frames) < 190
    assert message == f"{str(path)!r} ends after {len(frames)} of its 200 frames: the video is damaged or incomplete."
    some, message = read_until_error(path, 7)
    assert [frame.number for frame in some] == list(range(0, len(frames), 7))
    assert "ends after" in message


def write_no_frames(path: Path) -> None:
    cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (48, 32)).release()  # type: ignore[attr-defined]
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no such file"),
        (Path.mkdir, "folder"),
        (Path.touch, "empty"),
        (lambda path: cut_file(write_video(path, paint(12)), 0.1), "damaged or incomplete"),
        (write_no_frames, "no frames"),
    ],
)
def test_unreadable_video_gets_a_message(
    make: Callable[[Path], Any], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.avi"
    make(path)
    frames, message = read_until_error(path)
    assert frames == []
    assert message.startswith(f"Cannot read {str(path)!r}: ")
    assert words in message
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_name_that_is_not_utf8_gets_a_message(tmp_path: Path) -> None:
    """In another process, because OpenCV would crash it."""
    path = write_video(tmp_path / "a.avi", paint(3)).rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.avi"))
    program = (
        "import sys\nfrom pathlib import Path\nfrom lmr.images.video import read_frames\n"
        "try:\n    next(read_frames(Path(sys.argv[1])))\nexcept Exception as error:\n    print(ascii(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UnreadableImage(")
    assert "its full path is not valid UTF-8; rename it." in done.stdout


def test_one_frame_that_cannot_be_decoded_does_not_end_the_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "a.avi", paint(4))
    real, calls = video.retrieve_pixels, []

    def fail_once(capture: Any) -> Any:
        calls.append(capture)
        return None if len(calls) == 2 else real(capture)

    monkeypatch.setattr(video, "retrieve_pixels", fail_once)
    assert [frame.pixels is None for frame in read_frames(path)] == [False, True, False, False]


def test_addresses_are_told_from_paths() -> None:
    assert all(map(is_live, ["rtsp://10.0.0.17/stream", "RTSP://host", "http://host/video.mjpg", "https://host/x"]))
    assert not any(map(is_live, ["street.mp4", "/data/video", "C:\\video", "http", "rtsp:video", "ftp://host/x"]))
