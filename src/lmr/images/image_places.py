"""The images that a run is given: files, the frames of videos, and the paths in lists, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from lmr.images.image_files import UnreadableImage, list_images, open_image
from lmr.images.path_lists import ListedImage, ListSource, is_list, read_path_list
from lmr.images.remote_files import is_url, list_remote
from lmr.images.video_files import VideoFrame, is_video, read_frames

PlaceKey = tuple[str, int | None]  # absolute path, number of the frame


@dataclass(frozen=True)
class ImagePlace:
    """Where an image is: a file, or a frame of a video with its number and its time in seconds.

    A video without a frame number stands for the whole of it, where an error concerns all or the rest of its frames.
    """

    path: ListedImage
    frame: int | None = None
    time: float | None = None

    @property
    def key(self) -> PlaceKey:
        """The same for every spelling of a path."""
        return os.path.abspath(str(self.path)), self.frame

    def __str__(self) -> str:
        return repr(str(self.path)) if self.frame is None else f"frame {self.frame} of {str(self.path)!r}"


class ImageItem(NamedTuple):
    """An image to open: its place, and the function that gives it as RGB or raises UnreadableImage."""

    place: ImagePlace
    open: Callable[[], Image.Image]


def list_sources(sources: Sequence[str | os.PathLike[str]], column: str | None = None) -> list[ListedImage]:
    """Turn files, folders and lists of paths into one list of image and video files, each of them once.

    Folders are searched for images, not for videos: what a phone or camera stores beside a photograph would take
    longer than all photographs. ``column`` is that of the paths in .csv and .parquet lists.
    """
    unique: dict[PlaceKey, ListedImage] = {}
    for source in sources:
        for one in _list_source(source, column):
            unique.setdefault(ImagePlace(one).key, one)
    return list(unique.values())


def find_list(source: str | os.PathLike[str]) -> ListSource | None:
    """A source as a list to read, if it is one."""
    if not is_list(source):
        return None
    if isinstance(source, str) and is_url(source):
        return source
    return Path(source) if os.path.isfile(source) else None


def _list_source(source: str | os.PathLike[str], column: str | None) -> Sequence[ListedImage]:
    listed = find_list(source)
    if listed is not None:
        return read_path_list(listed, column)
    return list_remote(source) if isinstance(source, str) and is_url(source) else list_images([source])


def has_frames(path: ListedImage) -> bool:
    """Whether this is a video, whose frames are labelled."""
    return isinstance(path, Path) and is_video(path)


def iterate_images(
    paths: Sequence[ListedImage],
    every: int = 1,
    finished: Collection[PlaceKey] = frozenset(),
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[ImageItem]:
    """The images of the files in order, without those that are finished; of a video every ``every``-th frame.

    A video that cannot be read, or not to its end, has one item more, which raises when it is opened. There are no
    more items once ``is_stopped`` says so; a video asks it at every frame.
    """
    for path in paths:
        if is_stopped():
            return
        place = ImagePlace(path)
        if place.key in finished:
            continue
        if not isinstance(path, Path):
            yield ImageItem(place, path.open)
        elif is_video(path):
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
