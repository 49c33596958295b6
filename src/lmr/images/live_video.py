"""Live video from a network address, such as rtsp://camera/stream: frames as they come, without an end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from lmr.images.image_files import UnreadableImage
from lmr.images.video_files import VideoFrame, connect_capture, retrieve_pixels

SCHEMES = ("rtsp", "rtsps", "http", "https")
OPEN_MS, READ_MS = 10_000, 10_000  # after which a camera that says nothing counts as gone


def is_live(source: str) -> bool:
    """Whether the text is the address of a live video."""
    return urlsplit(source).scheme.lower() in SCHEMES and "://" in source


def hide_password(address: str) -> str:
    """The address for messages and files: without the user and the password that it may hold."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def read_live(address: str, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[VideoFrame]:
    """Frames, numbered from 0, until the connection ends; UnreadableImage if there is none."""
    import cv2

    # Frames that are lost on the way are smeared over the next ones; over TCP none are.
    os.environ.setdefault("OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_transport;tcp")
    options = (cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_MS)
    capture = connect_capture(address, hide_password(address), options)
    try:
        if not capture.isOpened():
            raise UnreadableImage(
                f"Cannot read {hide_password(address)!r}: there is no answer, it refuses, or it sends no video that "
                "can be decoded; check the address, the user and the password."
            )
        number = 0
        while not is_stopped() and capture.grab():
            yield VideoFrame(number, None, retrieve_pixels(capture))
            number += 1
    finally:
        capture.release()
