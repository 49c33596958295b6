"""The images of a run, files and the frames of videos, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from lmr.images.files import UnreadableImage, list_images, open_image
from lmr.images.lists import is_list, read_path_list
from lmr.images.video import VideoFrame, is_video, read_frames

PlaceKey = tuple[str, int | None]  # absolute path, number of the frame


@dataclass(frozen=True)
class ImagePlace:
    """The place of an image: a file, or a frame of a video with its number and its time in seconds.

    A video without a frame number means the whole video: an error concerns all or the rest of its frames.
    """

    path: Path
    frame: int | None = None
    time: float | None = None

    @property
    def key(self) -> PlaceKey:
        """The absolute path and the frame: the same for every spelling of a path."""
        return os.path.abspath(str(self.path)), self.frame

    def __str__(self) -> str:
        return repr(str(self.path)) if self.frame is None else f"frame {self.frame} of {str(self.path)!r}"


class ImageItem(NamedTuple):
    """An image to open: its place, and the function that returns it as RGB or raises UnreadableImage."""

    place: ImagePlace
    open: Callable[[], Image.Image]


def list_sources(sources: Sequence[str | os.PathLike[str]], column: str | None = None) -> list[Path]:
    """Return the image and video files among files, folders and lists of images, each of them once.

    Folders are searched for images, not for videos: the clips that a phone stores next to its photographs would take
    longer than all photographs. ``column`` is the column of the paths in .csv lists.
    """
    unique: dict[PlaceKey, Path] = {}
    for source in sources:
        listed = is_list(source) and os.path.isfile(source)
        for path in read_path_list(Path(source), column) if listed else list_images([source]):
            unique.setdefault(ImagePlace(path).key, path)
    return list(unique.values())


def has_frames(paths: Iterable[Path]) -> bool:
    """Return True if there are videos, whose frames are labelled."""
    return any(map(is_video, paths))


def iterate_images(
    paths: Sequence[Path],
    every: int = 1,
    finished: Collection[PlaceKey] = frozenset(),
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[ImageItem]:
    """Iterate over the images of the files in order, without finished ones; of a video every ``every``-th frame.

    A video that cannot be read to its end yields one more item, which raises when it is opened. The iteration ends once
    ``is_stopped`` returns True; it is called for every file and every frame of a video.
    """
    for path in paths:
        if is_stopped():
            return
        place = ImagePlace(path)
        if place.key in finished:
            continue
        if is_video(path):
            yield from _iterate_frames(path, every, finished, is_stopped)
        else:
            yield ImageItem(place, partial(open_image, path))


def _iterate_frames(
    path: Path, every: int, finished: Collection[PlaceKey], is_stopped: Callable[[], bool]
) -> Iterator[ImageItem]:
    name = os.path.abspath(path)
    try:
        for frame in read_frames(path, every, lambda number: (name, number) not in finished, is_stopped):
            place = ImagePlace(path, frame.number, frame.time)
            yield ImageItem(place, partial(_open_frame, place, frame))
    except UnreadableImage as error:
        yield ImageItem(ImagePlace(path), partial(_refuse, str(error)))


def _open_frame(place: ImagePlace, frame: VideoFrame) -> Image.Image:
    if frame.pixels is None:
        raise UnreadableImage(f"Cannot decode {place}.")
    return Image.fromarray(frame.pixels)


def _refuse(message: str) -> Image.Image:
    raise UnreadableImage(message)
