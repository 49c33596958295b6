"""Sources of a camera's frames. Each yields frames in order, and None where there is none for now."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

from lmr.core.errors import LmrError
from lmr.core.foreign_text import hide_password
from lmr.images.files import EXTENSIONS, UnreadableImage, make_sort_key, open_image
from lmr.images.video import is_live, is_video, is_webcam, read_frames, read_live

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POLL_SECONDS = 0.2  # between two reads of a folder or of an empty queue
GROWTH_SECONDS = 10.0  # a file that did not change for this long and cannot be read is skipped
WAITING_FRAMES = 64  # of a live camera; past it the oldest are dropped, because the newest matter
RECONNECT_SECONDS = 2.0
MOST_LETTERS = 64  # of a stream that is named after its source


@dataclass(frozen=True, eq=False)
class CameraFrame:
    """A frame and its name in the source: a number or a file name. ``image`` is a file or pixels."""

    name: str
    image: Path | NDArray[np.uint8]


class CameraSource(Protocol):
    """The interface of a source."""

    name: str  # for messages; no passwords
    live: bool  # True if frames do not wait until they are read

    def read(self, is_stopped: Callable[[], bool]) -> Iterator[CameraFrame | None]:
        """Yield the frames."""
        ...


Report = Callable[[str], object]  # gets messages for people


def open_source(source: str, every: int, fps: float | None, idle: float | None, report: Report) -> CameraSource:
    """Return the source that a text names: an address, a video file, a folder or the number of a webcam."""
    if is_live(source) or (is_webcam(source) and not os.path.exists(source)):
        return LiveSource(source, every, fps, report)
    if os.path.isdir(source):
        return FolderSource(Path(source), every, idle, report)
    if os.path.isfile(source) and is_video(source):
        return VideoSource(Path(source), every, report)
    found = "it is neither" if os.path.exists(source) else "there is no such file or folder"
    shown = hide_password(source) if "://" in source else source
    raise LmrError(
        f"Expected a video file, a folder, an address such as rtsp://… or the number of a webcam, got "
        f"{shown!r}: {found}."
    )


def name_stream(source: str) -> str:
    """Return the name of the stream of a source that nobody named: of its file, its folder or its host."""
    if is_webcam(source):
        return f"webcam-{source}"
    name = (urlsplit(source).hostname if is_live(source) else Path(source).resolve().stem) or "camera"
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-_")[:MOST_LETTERS] or "camera"


class VideoSource:
    """A video file; its frames are named by their numbers."""

    live = False

    def __init__(self, path: Path, every: int, report: Report) -> None:
        self.name, self._path, self._every, self._report = os.path.abspath(path), path, every, report

    def read(self, is_stopped: Callable[[], bool]) -> Iterator[CameraFrame | None]:
        """Yield the frames; one that cannot be decoded is skipped, and a damaged end is reported."""
        found = False
        try:
            for frame in read_frames(self._path, self._every, is_stopped=is_stopped):
                if frame.pixels is None:
                    self._report(f"Frame {frame.number} cannot be decoded and is skipped.")
                else:
                    yield CameraFrame(str(frame.number), frame.pixels)
                    found = True
        except UnreadableImage as error:
            if not found:
                raise
            self._report(str(error))


class FolderSource:
    """A folder that images are written to; frames are named by their files, in natural order.

    A file that is still being written is waited for, and those after it wait too, so that the order is kept. One that
    appears with a name before the last one sent is skipped. Ends after ``idle`` seconds without a new file, or never.
    """

    live = False

    def __init__(self, path: Path, every: int, idle: float | None, report: Report) -> None:
        self.name, self._path, self._every, self._idle, self._report = os.path.abspath(path), path, every, idle, report

    def read(self, is_stopped: Callable[[], bool]) -> Iterator[CameraFrame | None]:
        """Yield frames as they appear."""
        after: str | None = None  # the last one that was passed
        number, changed = 0, time.monotonic()
        while not is_stopped():
            names = self._list()
            fresh = names if after is None else [name for name in names if _order(name) > _order(after)]
            for name in fresh:
                state = self._examine(name)
                if state == "growing":
                    break
                if state == "whole" and number % self._every == 0:
                    yield CameraFrame(name, self._path / name)
                if is_stopped():
                    return
                after, changed = name, time.monotonic()
                number += 1
            else:
                if self._idle is not None and time.monotonic() - changed >= self._idle:
                    return
            yield None
            time.sleep(POLL_SECONDS)

    def _list(self) -> list[str]:
        names = [
            entry.name
            for entry in os.scandir(self._path)
            if entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith(".") and entry.is_file()
        ]
        return sorted(names, key=_order)

    def _examine(self, name: str) -> Literal["whole", "growing", "broken"]:
        """Find out if a file can be read; one that cannot and has not changed for a while is broken."""
        path = self._path / name
        try:
            open_image(path)
            return "whole"
        except UnreadableImage as error:
            try:
                if time.time() - path.stat().st_mtime < GROWTH_SECONDS:
                    return "growing"
            except OSError:  # it was deleted
                return "broken"
            self._report(f"{error} It is skipped.")
            return "broken"


class LiveSource:
    """A network camera; its frames are counted over all connections.

    A thread reads all the time, so that the camera is never kept waiting. Past WAITING_FRAMES the oldest are dropped.
    ``fps`` is the most frames that are taken per second.
    """

    live = True

    def __init__(self, address: str, every: int, fps: float | None, report: Report) -> None:
        self.name, self._address, self._every, self._report = hide_password(address), address, every, report
        self._gap = 0.0 if fps is None else 1.0 / fps
        self._frames: deque[CameraFrame] = deque(maxlen=WAITING_FRAMES)
        self._arrived = threading.Event()

    def read(self, is_stopped: Callable[[], bool]) -> Iterator[CameraFrame | None]:
        """Yield frames as they come; reconnect when the connection ends. The first connection must succeed."""
        ended = threading.Event()
        problems: list[Exception] = []

        def is_over() -> bool:
            return ended.is_set() or is_stopped()

        reader = threading.Thread(target=self._receive, args=(is_over, problems), daemon=True)
        reader.start()
        try:
            while not is_stopped():
                if self._arrived.wait(POLL_SECONDS):
                    self._arrived.clear()
                    while self._frames and not is_stopped():
                        yield self._frames.popleft()
                elif problems:
                    raise problems[0]
                else:
                    yield None
        finally:
            ended.set()
            reader.join(timeout=1.0)

    def _receive(self, is_over: Callable[[], bool], problems: list[Exception]) -> None:
        number, due, connected = -1, 0.0, False
        while not is_over():
            try:
                for frame in read_live(self._address, is_over):
                    connected = True
                    number += 1
                    now = time.monotonic()
                    if frame.pixels is None or frame.number % self._every or now < due:
                        continue
                    due = max(due + self._gap, now - self._gap)
                    self._put(CameraFrame(str(number), frame.pixels))
            except UnreadableImage as error:
                if not connected:
                    problems.append(error)
                    return
            if not is_over():
                self._report(f"The connection to {self.name} ended; trying again.")
                time.sleep(RECONNECT_SECONDS)

    def _put(self, frame: CameraFrame) -> None:
        self._frames.append(frame)
        self._arrived.set()


def _order(name: str) -> tuple[object, str]:
    return make_sort_key(Path(name)), name
