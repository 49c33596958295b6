"""Datasets of image files, which are listed once and opened when a batch needs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from lmr.core.errors import LmrError
from lmr.data.sets.dataset import CleanSet, ImageArray, make_digest
from lmr.data.sets.labelled import list_labelled, read_class_names
from lmr.images.image_files import EXTENSIONS, UnreadableImage, open_image

_NAME_FILES = ("names.tsv", "names.txt", "names.json")
_SAMPLED = 256  # files whose sizes go into a digest: 50,000 would take minutes on a network disk


class ImageFileSet(CleanSet):
    """Labelled files under one folder, of one clean domain.

    ``files`` are paths relative to ``folder``. ``prepare`` turns an opened image into the one that is given out,
    ``upright`` applies the orientation a camera stored, and ``advice`` ends the message about a missing file.
    """

    reads_files = True

    def __init__(
        self,
        name: str,
        folder: Path,
        files: Sequence[str],
        labels: Iterable[int],
        classes: Iterable[str],
        protocol: dict[str, str],
        *,
        prepare: Callable[[Image.Image], Image.Image] | None = None,
        upright: bool = False,
        advice: str = "",
    ) -> None:
        self.name, self.folder, self.files = name, folder, tuple(files)
        self.classes, self.protocol = tuple(classes), protocol
        self._labels = np.array(list(labels), np.int64)
        self._prepare, self._upright, self._advice = prepare, upright, advice

    @cached_property
    def digest(self) -> str:
        """Of the names, the labels, the classes and the sizes of some files."""
        return make_digest(
            "\n".join(self.files),
            self._labels.astype("<i8").tobytes(),
            "\n".join(self.classes),
            " ".join(str(size) for size in measure_some(self.folder, self.files, _SAMPLED)),
            "" if self._prepare is None else self.protocol.get("prepared", "prepared"),
        )

    def _read(self, indices: list[int]) -> list[ImageArray]:
        opened = (open_file(self.folder / self.files[index], self._upright, self._advice) for index in indices)
        return [np.array(self._prepare(image) if self._prepare else image) for image in opened]


def open_file(path: Path, upright: bool, advice: str) -> Image.Image:
    """Open an image; the error message for one that cannot be read ends with ``advice``."""
    try:
        return open_image(path, upright=upright)
    except UnreadableImage as error:
        raise UnreadableImage(f"{error} {advice}".strip()) from error


def measure_some(folder: Path, files: Sequence[str], count: int) -> list[int]:
    """Sizes of up to ``count`` files spread evenly over the list, -1 for one that is missing."""
    places = sorted({int(place) for place in np.linspace(0, len(files) - 1, min(count, len(files)))})
    sizes = []
    for place in places:
        try:
            sizes.append(os.path.getsize(folder / files[place]))
        except OSError:
            sizes.append(-1)
    return sizes


def list_classes(folder: Path, allowed: Iterable[str]) -> list[str]:
    """Every image as "class/file": classes in the order given, files of a class by name, as torchvision lists them.

    Files beside the class folders are ignored. A folder that is not a class is refused, because it is most likely
    another set.
    """
    order = list(allowed)
    found = {entry.name for entry in _scan(folder) if entry.is_dir()}
    if unknown := sorted(found - set(order)):
        raise LmrError(
            f"Expected one folder for each class ({order[0]}, {order[1]}, …) in {str(folder)!r}, but {unknown[0]!r} "
            "is not a class of this set; give the folder that contains only the classes."
        )
    names = [f"{name}/{file}" for name in order if name in found for file in list_image_files(folder / name)]
    if not names:
        raise LmrError(f"There is no image in class folders ({order[0]}, {order[1]}, …) in {str(folder)!r}.")
    return names


def list_image_files(folder: Path) -> list[str]:
    """Names of the image files in a folder, sorted, without hidden ones."""
    return sorted(entry.name for entry in _scan(folder) if entry.name.lower().endswith(EXTENSIONS))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise LmrError(f"Cannot list the folder {str(folder)!r}: {error.strerror}.") from error


def open_labelled(name: str, source: Path) -> ImageFileSet:
    """A folder with one sub-folder per class, or a table of paths and labels, as a set of this name.

    Class names come from a file names.tsv, names.txt or names.json in the folder (next to the table).
    """
    folder = source if source.is_dir() else source.parent
    own = next((folder / file for file in _NAME_FILES if (folder / file).is_file()), None)
    found = list_labelled(source, read_class_names(own) if own else None)
    classes = [text.replace("_", " ") for text in found.names]
    files = [os.path.relpath(path, folder) for path in found.paths]
    kind = "sub-folders as classes" if source.is_dir() else "a table of paths and labels"
    named = f", names from {own.name}" if own else ""
    protocol = {"pictures": f"{kind}, {len(files)} pictures of {len(classes)} classes{named}"}
    return ImageFileSet(name, folder, files, found.labels, classes, protocol, upright=True)
