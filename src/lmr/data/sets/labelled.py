"""Labelled images: a folder with one sub-folder per class, or a table of paths and labels.

Class names may be given separately, because the sub-folders of many sets are named by codes (n01440764).
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmr.core.errors import LmrError
from lmr.images.image_files import list_images

AnyPath = str | os.PathLike[str]
ClassNames = Sequence[str] | Mapping[str, str]

_QUOTE = "put names that hold commas, quotes or line breaks in double quotes, and double the quotes inside."


@dataclass(frozen=True)
class Labelled:
    """Images and the class of each: ``labels[k]`` is the index of image k's class in ``names``."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    names: tuple[str, ...]

    def choose(self, count: int, seed: int = 0) -> Labelled:
        """A random choice of ``count`` images, see ``choose_places``."""
        chosen = choose_places(len(self.paths), count, seed)
        return Labelled(tuple(self.paths[k] for k in chosen), tuple(self.labels[k] for k in chosen), self.names)


def choose_places(total: int, count: int, seed: int = 0) -> list[int]:
    """A random choice of ``count`` of ``total`` places, the same every time, sorted; all of them if there are fewer."""
    if count >= total:
        return list(range(total))
    chosen: list[int] = np.sort(np.random.default_rng(seed).permutation(total)[:count]).tolist()
    return chosen


def list_labelled(source: AnyPath, names: ClassNames | None = None) -> Labelled:
    """Images of ``source`` with their classes.

    A folder: every sub-folder is a class, its images are searched recursively. A .csv file: rows ``path,label``
    under that header, paths relative to the file. ``names`` gives the class names: a mapping from sub-folder (or label)
    to name, which may hold further classes, and then all of them are candidates; or a list, matched by name where it
    holds every sub-folder's name, by number where all are called 0, 1, 2 …, otherwise one name for each sub-folder in
    sorted order. Raises LmrError.
    """
    if os.path.isdir(source):
        found = _search_classes(Path(source))
    elif os.path.isfile(source) and os.fspath(source).lower().endswith(".csv"):
        found = _read_table(Path(source))
    else:
        problem = "is not a .csv file" if os.path.exists(source) else "does not exist"
        raise LmrError(
            f"Expected a folder with one sub-folder per class, or a .csv file with the columns path and label; "
            f"{os.fspath(source)!r} {problem}."
        )
    places, candidates = _match_names(list(found), names)
    if len(candidates) < 2:
        raise LmrError(f"Expected images of at least two classes in {os.fspath(source)!r}, got {candidates}.")
    pairs = [(path, place) for place, paths in zip(places, found.values(), strict=True) for path in paths]
    if not pairs:
        raise LmrError(f"There is no image in the sub-folders of {os.fspath(source)!r}; give a folder with images.")
    paths, labels = zip(*pairs, strict=True)
    return Labelled(paths, labels, tuple(candidates))


def read_class_names(path: AnyPath) -> list[str] | dict[str, str]:
    """Class names from a file: one per line, ``sub-folder<TAB>name`` lines, or JSON (a list, or sub-folder to name).

    A name may occur twice (ImageNet has two missiles and two sunglasses). Raises LmrError.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LmrError(f"Cannot read the class names in {name!r}: {error}.") from error
    if name.lower().endswith(".json"):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise LmrError(f"{name!r} is not JSON: {error}.") from error
        values = list(content.values()) if isinstance(content, dict) else content
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v.strip() for v in values):
            raise LmrError(f"Expected a JSON list of class names, or an object from sub-folder to name, in {name!r}.")
        return content if isinstance(content, dict) else values
    lines = [line.strip() for line in text.split("\n") if line.strip()]
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
    """The images of every sub-folder, in the sorted order of their names; a class may have none."""
    try:
        names = os.listdir(source)
    except OSError as error:
        raise LmrError(f"Cannot list the folder {str(source)!r}: {error.strerror}.") from error
    folders = sorted(name for name in names if not name.startswith(".") and (source / name).is_dir())
    found: dict[str, list[Path]] = {}
    for name in folders:
        try:
            found[name] = list_images([source / name])
        except LmrError:
            if os.listdir(source / name):
                raise  # files, but none of them an image: most likely the wrong folder
            found[name] = []
    if not found:
        raise LmrError(f"The folder {str(source)!r} has no sub-folders; expected one for each class.")
    return found


def _read_table(source: Path) -> dict[str, list[Path]]:
    try:
        with open(source, newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, skipinitialspace=True, strict=True)
            if not {"path", "label"} <= set(rows.fieldnames or ()):
                raise LmrError(f"Expected the columns path and label in {str(source)!r}, got {rows.fieldnames}.")
            found: dict[str, list[Path]] = {}
            for row in rows:
                if not row["path"] or not row["label"]:
                    raise LmrError(f"Line {rows.line_num} of {str(source)!r} lacks a path or a label; {_QUOTE}")
                if any(row.pop(None, ())):  # DictReader's key for what has no column
                    raise LmrError(f"Line {rows.line_num} of {str(source)!r} has more cells than the header; {_QUOTE}")
                path = row["path"].strip(" \t")  # line breaks in quotes belong to the name
                found.setdefault(row["label"].strip(), []).append(source.parent / path)
    except csv.Error as error:
        first = rows.line_num + 1  # of the row that is wrong: line_num is the last line of the row before it
        raise LmrError(f"Line {first} of {str(source)!r} does not begin a row: {error}; {_QUOTE}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LmrError(f"Cannot read the table {str(source)!r}: {error}.") from error
    if not found:
        raise LmrError(f"The table {str(source)!r} has no rows under its header.")
    return dict(sorted(found.items()))


def _match_names(keys: list[str], names: ClassNames | None) -> tuple[list[int], list[str]]:
    """For each key (sub-folder or label) the index of its class among the candidates, and the candidates."""
    if names is None:
        return list(range(len(keys))), keys
    if isinstance(names, Mapping):
        if missing := [key for key in keys if key not in names]:
            raise LmrError(
                f"The class names lack {len(missing)} of the images' {len(keys)} classes, for example {missing[0]!r}."
            )
        order = {key: place for place, key in enumerate(names)}
        return [order[key] for key in keys], list(names.values())
    known = {_read_name(name): place for place, name in enumerate(names)}
    if all(_read_name(key) in known for key in keys):
        return [known[_read_name(key)] for key in keys], list(names)
    if all(key.isdecimal() and int(key) < len(names) for key in keys):
        return [int(key) for key in keys], list(names)
    if len(names) != len(keys):
        unknown = next(key for key in keys if _read_name(key) not in known)
        raise LmrError(
            f"Expected a name for each of the {len(keys)} classes of the images, in sorted order, got {len(names)}, "
            f"and {unknown!r} is not among them. Give sub-folder<TAB>name lines if some classes have no images."
        )
    return list(range(len(keys))), list(names)


def _read_name(name: str) -> str:
    """How a name is compared: "Great_white_shark" is "great white shark"."""
    return " ".join(name.replace("_", " ").casefold().split())
