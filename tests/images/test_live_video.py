"""Addresses of live video; frames over a socket are tested with the camera's sources."""

from __future__ import annotations

import pytest

from lmr.images.files import UnreadableImage
from lmr.images.video import hide_password, is_live, read_live


def test_addresses_are_told_from_paths() -> None:
    assert all(map(is_live, ["rtsp://10.0.0.17/stream", "RTSP://host", "http://host/video.mjpg", "https://host/x"]))
    assert not any(map(is_live, ["street.mp4", "/data/video", "C:\\video", "http", "rtsp:video", "ftp://host/x"]))


def test_passwords_are_not_shown() -> None:
    assert hide_password("rtsp://user:p@ss@10.0.0.17:554/stream?x=1") == "rtsp://10.0.0.17:554/stream?x=1"
    assert hide_password("rtsp://10.0.0.17/stream") == "rtsp://10.0.0.17/stream"


def test_no_camera_is_an_error() -> None:
    with pytest.raises(UnreadableImage, match=r"Cannot read 'http://127\.0\.0\.1:9/video': there is no answer"):
        next(read_live("http://user:secret@127.0.0.1:9/video"))
