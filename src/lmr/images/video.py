"""Video files and live video: frames one after the other, as 8-bit RGB."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from lmr.core.extras import require
from lmr.core.foreign_text import hide_password
from lmr.images.files import UnreadableImage, refuse_missing

if TYPE_CHECKING:
    import cv2

VIDEO_EXTENSIONS: tuple[str, ...] = (
    ".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".mjpeg", ".wmv", ".flv", ".ts", ".3gp", ".ogv",
)  # fmt: skip

# If a container does not count its frames, OpenCV estimates their number from its length, which may differ a little.
_FEWER_FRAMES, _FEWER_SHARE = 2, 0.05

SCHEMES = ("rtsp", "rtsps", "http", "https")  # of live video
OPEN_MS, READ_MS = 10_000, 10_000  # after this time a silent camera counts as gone


@dataclass(frozen=True)
class VideoFrame:
    """One frame: its number from 0, its time in seconds (None if unknown), and RGB [H, W, 3] (None if undecodable)."""

    number: int
    time: float | None
    pixels: NDArray[np.uint8] | None


def is_video(path: str | os.PathLike[str]) -> bool:
    """Return True for the name of a video file."""
    return os.fspath(path).lower().endswith(VIDEO_EXTENSIONS)


def read_frames(
    path: Path,
    every: int = 1,
    is_wanted: Callable[[int], bool] = lambda number: True,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[VideoFrame]:
    """Iterate over the wanted ones of the frames 0, ``every``, 2 · ``every`` …; one of them is in memory at a time.

    Frames in between are skipped one by one, because seeking is not exact in many formats. As that may take minutes,
    ``is_stopped`` is called at each of them; if it returns True, the iteration ends without an error. Raises
    UnreadableImage, after the frames that could be read, for a video that cannot be opened, has no frames, or ends
    early.
    """
    require("cv2", "video", "Reading a video")
    import cv2

    capture = _open_capture(path)
    number, promised = 0, 0.0
    try:
        promised, rate = capture.get(cv2.CAP_PROP_FRAME_COUNT), capture.get(cv2.CAP_PROP_FPS)
        while capture.grab():
            if is_stopped():
                return
            if number % every == 0 and is_wanted(number):
                time = _read_time(capture.get(cv2.CAP_PROP_POS_MSEC), number, rate)
                yield VideoFrame(number, time, retrieve_pixels(capture))
            number += 1
    except cv2.error as error:
        raise UnreadableImage(f"Cannot read {str(path)!r} after {number} frames: {_describe_error(error)}.") from error
    finally:
        capture.release()
    if number == 0:
        raise UnreadableImage(
            f"Cannot read {str(path)!r}: it has no frames that can be decoded; it is damaged, or its codec is missing."
        )
    if promised - number > max(_FEWER_FRAMES, _FEWER_SHARE * promised):
        raise UnreadableImage(
            f"{str(path)!r} ends after {number} of its {promised:.0f} frames: the video is damaged or incomplete."
        )


def _open_capture(path: Path) -> cv2.VideoCapture:
    refuse_missing(path)
    if os.path.getsize(path) == 0:
        raise UnreadableImage(f"Cannot read {str(path)!r}: the file is empty.")
    full = os.path.abspath(path)  # in a relative path, FFmpeg takes the text before a colon for a protocol
    try:
        full.encode("utf-8")
    except UnicodeEncodeError as error:  # it would crash the process inside OpenCV
        raise UnreadableImage(f"Cannot read {str(path)!r}: its full path is not valid UTF-8; rename it.") from error
    capture = connect_capture(full, str(path))
    if not capture.isOpened():
        raise UnreadableImage(
            f"Cannot read {str(path)!r}: it is not a video, it is damaged or incomplete, or its codec is missing; "
            "convert it to .mp4 with another program."
        )
    return capture


def connect_capture(address: str, shown: str, options: Sequence[int] = ()) -> cv2.VideoCapture:
    """Return OpenCV's reader of a file or of a network address, which may not be open. Raises UnreadableImage.

    ``shown`` is the name in error messages.
    """
    require("cv2", "video", "Reading a video")
    import cv2

    # OpenCV and FFmpeg print to standard error; the error messages here say what a user can do instead.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    logging: Any = cv2.utils.logging
    logging.setLogLevel(logging.LOG_LEVEL_SILENT)
    has_ffmpeg = cv2.videoio_registry.hasBackend(cv2.CAP_FFMPEG)  # other backends are tried if it is missing
    try:
        return cv2.VideoCapture(address, cv2.CAP_FFMPEG if has_ffmpeg else cv2.CAP_ANY, list(options))
    except cv2.error as error:
        raise UnreadableImage(f"Cannot read {shown!r}: {_describe_error(error)}.") from error


def _read_time(milliseconds: float, number: int, rate: float) -> float | None:
    """Return the seconds from the file's time stamp, otherwise from the number of frames per second."""
    if math.isfinite(milliseconds) and (milliseconds > 0 or number == 0):
        return round(max(milliseconds, 0.0) / 1000, 6)
    return round(number / rate, 6) if math.isfinite(rate) and rate > 0 else None


def retrieve_pixels(capture: cv2.VideoCapture) -> NDArray[np.uint8] | None:
    """Return the grabbed frame in RGB (OpenCV has blue first); None if it cannot be decoded."""
    found, pixels = capture.retrieve()
    if not found or pixels is None or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        return None
    return np.ascontiguousarray(pixels[:, :, ::-1])


def _describe_error(error: cv2.error) -> str:
    return f"OpenCV reports {str(error).strip()!r}"


def is_live(source: str) -> bool:
    """Return True for the address of a live video, such as rtsp://camera/stream."""
    return urlsplit(source).scheme.lower() in SCHEMES and "://" in source


def is_webcam(source: str) -> bool:
    """Return True for the number of a webcam of this machine, such as 0."""
    return re.fullmatch("[0-9]{1,2}", source) is not None


def read_live(address: str, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[VideoFrame]:
    """Iterate over live frames, numbered from 0, until the connection ends. Raises UnreadableImage without one.

    The address may be the number of a webcam.
    """
    require("cv2", "video", "Reading a video")
    import cv2

    # A frame that is lost on the way is smeared over the next ones; over TCP none is lost.
    os.environ.setdefault("OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_transport;tcp")
    options = (cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_MS)
    webcam = is_webcam(address)
    capture = cv2.VideoCapture(int(address)) if webcam else connect_capture(address, hide_password(address), options)
    try:
        if not capture.isOpened() and webcam:
            raise UnreadableImage(
                f"There is no webcam {address} that can be opened; look if another program uses it, and on Linux if "
                f"/dev/video{address} exists and you may read it."
            )
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
