"""Small videos for tests: MJPG in .avi, which OpenCV writes and reads everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def write_video(path: Path, frames: Sequence[Pixels], rate: float = 10.0, code: str = "MJPG") -> Path:
    """RGB frames [h, w, 3] of one size."""
    height, width = frames[0].shape[:2]
    kind: Any = cv2.VideoWriter_fourcc(*code)  # type: ignore[attr-defined]
    writer = cv2.VideoWriter(str(path), kind, rate, (width, height))
    assert writer.isOpened()
    for frame in frames:
        writer.write(np.ascontiguousarray(frame[:, :, ::-1]))
    writer.release()
    return path


def paint(count: int, size: tuple[int, int] = (32, 48)) -> list[Pixels]:
    """Plain frames [h, w, 3] whose red rises with the number; green and blue tell the channels apart."""
    frames = [np.zeros((*size, 3), np.uint8) for _ in range(count)]
    for number, frame in enumerate(frames):
        frame[...] = (4 * number % 256, 200, 60)
    return frames


def cut_file(path: Path, share: float) -> Path:
    """Leave only the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path
