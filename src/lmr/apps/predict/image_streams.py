"""Streams: the images that belong together, such as those of one camera, and how they are shared out.

The model adapts to each stream on its own. The streams are in the order in which their first images are listed, and
the images of a stream in the order of the listing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.images.image_places import ImagePlace, PlaceKey, find_list, list_sources
from lmr.images.path_lists import ListedImage, read_column, read_path_list
from lmr.images.remote_files import RemoteImage

AnyPath = str | os.PathLike[str]
BY_FOLDER = "folder"
BY_COLUMN = "column:"


@dataclass(frozen=True)
class ImageStream:
    """Images that one adaptation follows, with their number among all streams, counted from 0."""

    number: int
    name: str
    images: tuple[ListedImage, ...]


@dataclass(frozen=True)
class Shard:
    """Streams that are labelled one after the other."""

    number: int
    streams: tuple[ImageStream, ...]

    @property
    def images(self) -> int:
        """How many images and videos its streams have."""
        return sum(len(stream.images) for stream in self.streams)


def split_streams(sources: Sequence[AnyPath], stream_by: str, column: str | None = None) -> list[ImageStream]:
    """List the images of the sources and split them into streams.

    ``stream_by`` is "folder" (the folder that holds the image), "column:NAME" (a column of the lists that all sources
    then are) or a regular expression with one group, which is searched in the path.
    """
    named = _read_names if stream_by.startswith(BY_COLUMN) else _name_paths
    streams: dict[str, list[ListedImage]] = {}
    for name, image in named(sources, stream_by, column):
        streams.setdefault(name, []).append(image)
    return [ImageStream(number, name, tuple(images)) for number, (name, images) in enumerate(streams.items())]


def make_shards(streams: Iterable[ImageStream], count: int) -> list[Shard]:
    """Share streams out over at most ``count`` shards of about as many images each; always in the same way.

    The longest stream comes first and goes to the shard that has the fewest images so far.
    """
    ordered = sorted(streams, key=lambda stream: (-len(stream.images), stream.number))
    taken: list[list[ImageStream]] = [[] for _ in range(min(count, len(ordered)))]
    loads = [0] * len(taken)
    for stream in ordered:
        place = loads.index(min(loads))
        taken[place].append(stream)
        loads[place] += len(stream.images)
    by_number = [tuple(sorted(own, key=lambda stream: stream.number)) for own in taken]
    return [Shard(number, own) for number, own in enumerate(by_number)]


def _read_names(sources: Sequence[AnyPath], stream_by: str, column: str | None) -> Iterable[tuple[str, ListedImage]]:
    """The images of lists, each once, with what another column says about them."""
    unique: dict[PlaceKey, tuple[str, ListedImage]] = {}
    for source in sources:
        listed = find_list(source)
        if listed is None:
            raise LmrError(
                f"--stream-by {stream_by} is for .csv and .parquet lists, and {os.fspath(source)!r} is none; give "
                "lists, or choose streams by folder or by a regular expression."
            )
        images = read_path_list(listed, column)
        names = read_column(listed, stream_by.removeprefix(BY_COLUMN), "stream", numbers=True)
        for name, image in zip(names, images, strict=True):
            unique.setdefault(ImagePlace(image).key, (name, image))
    return unique.values()


def _name_paths(sources: Sequence[AnyPath], stream_by: str, column: str | None) -> Iterable[tuple[str, ListedImage]]:
    name = _name_folder if stream_by == BY_FOLDER else _search(stream_by)
    return [(name(image), image) for image in list_sources(sources, column)]


def _name_folder(image: ListedImage) -> str:
    if isinstance(image, Path):
        return str(image.parent)
    folder = str(image).rpartition("/")[0]
    return folder if isinstance(image, RemoteImage) else folder or "."


def _search(pattern: str) -> Callable[[ListedImage], str]:
    """What the group of a regular expression finds in the path of an image."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise LmrError(
            f"Expected folder, column:NAME or a regular expression for --stream-by, got {pattern!r} ({error})."
        ) from error
    if expression.groups != 1:
        raise LmrError(
            f"Expected folder, column:NAME or a regular expression with one group for --stream-by, such as "
            f"'(cam[0-9]+)', got {pattern!r}, which has {expression.groups} groups."
        )

    def name(image: ListedImage) -> str:
        path = image.as_posix() if isinstance(image, Path) else str(image)
        found = expression.search(path)
        if found is None or found.group(1) is None:
            raise LmrError(f"--stream-by {pattern!r} finds no stream in the path {path!r}; change the expression.")
        return found.group(1)

    return name
