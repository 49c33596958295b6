"""FrameShelf: small copies of the last frames of the streams that were served last, for the page; in memory alone."""

from __future__ import annotations

import io
from collections import OrderedDict, deque
from dataclasses import dataclass

from PIL.Image import Image

MOST_STREAMS, MOST_FRAMES = 64, 12
_SIDE = 96  # pixels


@dataclass(frozen=True)
class ShownFrame:
    """A frame as it is shown: a small WebP image, with the answer to it."""

    seq: int
    label: str
    content: bytes


class FrameShelf:
    """The last frames of each stream. Used from the event loop alone."""

    def __init__(self) -> None:
        self._frames: OrderedDict[str, deque[ShownFrame]] = OrderedDict()

    def add(self, stream: str, frame: ShownFrame) -> None:
        """Keep a frame, and forget the oldest one."""
        self._frames.setdefault(stream, deque(maxlen=MOST_FRAMES)).append(frame)
        self._frames.move_to_end(stream)
        if len(self._frames) > MOST_STREAMS:
            self._frames.popitem(last=False)

    def drop(self, stream: str) -> None:
        """Forget the frames of a stream."""
        self._frames.pop(stream, None)

    def list_frames(self, stream: str) -> list[ShownFrame]:
        """The frames of a stream, oldest first."""
        return list(self._frames.get(stream, ()))


def shrink_frame(image: Image) -> bytes:
    """A small copy of an image."""
    small = image.copy()
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "WEBP", quality=70)
    return file.getvalue()
