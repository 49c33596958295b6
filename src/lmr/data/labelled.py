"""Labelled image files: a folder with one sub-folder per class, or a table of paths and labels.

Class names may be given separately, because the sub-folders of many sets are named by codes (n01440764). A set lists
its files once and opens them when a batch needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from lmr.core.errors import LmrError
from lmr.core.files import read_json, read_text
from lmr.core.spec import list_unknown, simplify_name
from lmr.data.dataset import CleanSet, ImageArray, make_digest
from lmr.images.files import EXTENSIONS, list_images, open_image
from lmr.images.lists import read_column

AnyPath = str | os.PathLike[str]
ClassNames = Sequence[str] | Mapping[str, str]

_NAME_FILES = ("names.tsv", "names.txt", "names.json")
_SAMPLED = 256  # files whose sizes go into a digest: 50,000 would take minutes on a network disk


@dataclass(frozen=True)
class Labelled:
    """Images and the class of each: ``labels[k]`` is the index of image k's class in ``names``."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    names: tuple[str, ...]


def list_labelled(source: AnyPath, names: ClassNames | None = None) -> Labelled:
    """Return the images of ``source`` with their classes. Raises LmrError.

    A folder: every sub-folder is a class, its images are searched recursively. A .csv file: rows ``path,label``
    under that header, paths relative to the file. ``names`` gives the class names. A mapping goes from sub-folder (or
    label) to name; it may contain further classes, which are candidates too. A list is matched by name if it contains
    the names of all sub-folders, by number if these are called 0, 1, 2 …, and otherwise has one name for each
    sub-folder in sorted order.
    """
    if os.path.isdir(source):
        found = _search_classes(Path(source))
    elif os.path.isfile(source) and os.fspath(source).lower().endswith(".csv"):
        found = _read_table(Path(source))
    else:
        problem = "is neither" if os.path.exists(source) else "does not exist"
        raise LmrError(
            f"Expected a folder with one sub-folder per class, or a .csv file with the columns path and label; "
            f"{os.fspath(source)!r} {problem}."
        )
    places, candidates = match_names(list(found), names)
    if len(candidates) < 2:
        raise LmrError(f"Expected images of at least two classes in {os.fspath(source)!r}, got {candidates}.")
    pairs = [(path, place) for place, paths in zip(places, found.values(), strict=True) for path in paths]
    if not pairs:
        raise LmrError(f"There is no image in the sub-folders of {os.fspath(source)!r}; give a folder with images.")
    paths, labels = zip(*pairs, strict=True)
    return Labelled(paths, labels, tuple(candidates))


def read_class_names(path: AnyPath) -> list[str] | dict[str, str]:
    """Read class names: one per line, ``sub-folder<TAB>name`` lines, or JSON (a list, or sub-folder to name).

    A name may occur twice (ImageNet has two missiles and two sunglasses). Raises LmrError.
    """
    name = os.fspath(path)
    if name.lower().endswith(".json"):
        content = read_json(path, "the class names in")
        values = list(content.values()) if isinstance(content, dict) else content
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v.strip() for v in values):
            raise LmrError(f"Expected a JSON list of class names, or an object from sub-folder to name, in {name!r}.")
        return content if isinstance(content, dict) else values
    lines = [line.strip() for line in read_text(path, "the class names in").split("\n") if line.strip()]
    if not lines:
        raise LmrError(f"Expected class names, one per line, in {name!r}; the file is empty.")
    if not any("\t" in line for line in lines):
        return lines
    pairs = [line.split("\t", 1) for line in lines]
    mapping = {pair[0].strip(): pair[-1].strip() for pair in pairs}
    if any(len(pair) < 2 for pair in pairs) or len(mapping) < len(pairs) or not all(mapping.values()):
        raise LmrError(f"Expected every line of {name!r} as sub-folder<TAB>name, each sub-folder once.")
    return mapping


def _search_classes(source: Path) -> dict[str, list[Path]]:
    """Return the images of every sub-folder, sub-folders sorted by name; a class may have none."""
    found: dict[str, list[Path]] = {}
    for name in list_folders(source):
        try:
            found[name] = list_images([source / name])
        except LmrError:
            if os.listdir(source / name):
                raise  # it contains files but no image: most likely the wrong folder
            found[name] = []
    if not found:
        raise LmrError(f"The folder {str(source)!r} has no sub-folders; expected one for each class.")
    return found


def _read_table(source: Path) -> dict[str, list[Path]]:
    """Return the images of every label, labels sorted; paths are relative to the folder of the table."""
    paths, labels = (read_column(source, name, name) for name in ("path", "label"))
    found: dict[str, list[Path]] = {}
    for path, label in zip(paths, labels, strict=True):
        # Line breaks in quotes belong to the name of a file.
        found.setdefault(label.strip(), []).append(source.parent / path.strip(" \t"))
    return dict(sorted(found.items()))


def match_names(keys: list[str], names: ClassNames | None) -> tuple[list[int], list[str]]:
    """Return the index of the class of each key (sub-folder or label) among the candidates, and the candidates."""
    if names is None:
        return list(range(len(keys))), keys
    if isinstance(names, Mapping):
        if missing := [key for key in keys if key not in names]:
            listed = list_unknown(missing, names)
            raise LmrError(f"The class names lack {len(missing)} of the images' {len(keys)} classes: {listed}.")
        order = {key: place for place, key in enumerate(names)}
        return [order[key] for key in keys], list(names.values())
    known = {simplify_name(name): place for place, name in enumerate(names)}
    if all(simplify_name(key) in known for key in keys):
        return [known[simplify_name(key)] for key in keys], list(names)
    if all(key.isdecimal() and int(key) < len(names) for key in keys):
        return [int(key) for key in keys], list(names)
    if len(names) != len(keys):
        unknown = list_unknown([key for key in keys if simplify_name(key) not in known], names)
        raise LmrError(
            f"Expected a name for each of the {len(keys)} classes of the images, in sorted order, got {len(names)}, "
            f"without {unknown}. Give sub-folder<TAB>name lines if some classes have no images."
        )
    return list(range(len(keys))), list(names)


class ImageFileSet(CleanSet):
    """Labelled files under one folder, of one clean domain.

    ``files`` are paths relative to ``folder``. ``prepare`` is applied to every opened image, ``upright`` applies the
    orientation a camera stored.
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
    ) -> None:
        self.name, self.folder, self.files = name, folder, tuple(files)
        self.classes, self.protocol = tuple(classes), protocol
        self._labels = np.array(list(labels), np.int64)
        self._prepare, self._upright = prepare, upright

    def prepared_by(self, prepare: Callable[[Image.Image], Image.Image], text: str) -> ImageFileSet:
        """Return the same files with ``prepare`` applied to every image; ``text`` describes it."""
        protocol = {**self.protocol, "prepared": text}
        return ImageFileSet(
            self.name, self.folder, self.files, self._labels, self.classes, protocol, prepare=prepare,
            upright=self._upright,
        )  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """The digest of the names, the labels, the classes and the sizes of some files."""
        return make_digest(
            "\n".join(self.files),
            self._labels.astype("<i8").tobytes(),
            "\n".join(self.classes),
            " ".join(str(size) for size in measure_some(self.folder, self.files, _SAMPLED)),
            "" if self._prepare is None else self.protocol.get("prepared", "prepared"),
        )

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        opened = (open_image(self.folder / self.files[index], upright=self._upright) for index in indices)
        return [np.array(self._prepare(image) if self._prepare else image) for image in opened]


def measure_some(folder: Path, files: Sequence[str], count: int) -> list[int]:
    """Return the sizes of up to ``count`` files spread evenly over the list, -1 for a missing one."""
    places = sorted({int(place) for place in np.linspace(0, len(files) - 1, min(count, len(files)))})
    sizes = []
    for place in places:
        try:
            sizes.append(os.path.getsize(folder / files[place]))
        except OSError:
            sizes.append(-1)
    return sizes


def list_classes(folder: Path, allowed: Iterable[str]) -> list[str]:
    """Return every image as "class/file": classes in the given order, files of a class by name, like torchvision.

    Files next to the class folders are ignored. A folder that is not a class is an error, because it is most likely
    another set.
    """
    order = list(allowed)
    found = set(list_folders(folder))
    if unknown := sorted(found - set(order)):
        raise LmrError(
            f"Expected one folder for each class ({order[0]}, {order[1]}, …) in {str(folder)!r}, but {unknown[0]!r} "
            "is not a class of this set; give the folder that contains only the classes."
        )
    names = [f"{name}/{file}" for name in order if name in found for file in list_image_files(folder / name)]
    if not names:
        raise LmrError(f"There is no image in class folders ({order[0]}, {order[1]}, …) in {str(folder)!r}.")
    return names


def list_folders(folder: Path) -> list[str]:
    """Return the names of the sub-folders of a folder, sorted, without hidden ones."""
    return sorted(entry.name for entry in _scan(folder) if entry.is_dir())


def list_image_files(folder: Path) -> list[str]:
    """Return the names of the image files in a folder, sorted, without hidden ones."""
    return sorted(entry.name for entry in _scan(folder) if entry.name.lower().endswith(EXTENSIONS))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise LmrError(f"Cannot list the folder {str(folder)!r}: {error.strerror}.") from error


def find_name_file(folder: Path) -> Path | None:
    """Return the file with class names in a folder, if there is one."""
    return next((folder / file for file in _NAME_FILES if (folder / file).is_file()), None)


def open_labelled(name: str, source: Path, names: ClassNames | None = None) -> ImageFileSet:
    """Open a folder with one sub-folder per class, or a table of paths and labels, as a set of this name.

    Class names, if not given, come from a file names.tsv, names.txt or names.json in the folder (next to the table).
    """
    folder = source if source.is_dir() else source.parent
    own = find_name_file(folder) if names is None else None
    found = list_labelled(source, read_class_names(own) if own else names)
    classes = [text.replace("_", " ") for text in found.names]
    files = [os.path.relpath(path, folder) for path in found.paths]
    kind = "sub-folders as classes" if source.is_dir() else "a table of paths and labels"
    named = f", names from {own.name}" if own else ""
    protocol = {"images": f"{kind}, {len(files)} images of {len(classes)} classes{named}"}
    return ImageFileSet(name, folder, files, found.labels, classes, protocol, upright=True)
