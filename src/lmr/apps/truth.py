"""True labels of some images, in a .csv file: written by ``lmr label``, by hand, or by a labelling tool."""

from __future__ import annotations

import csv
import io
import os
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmr.apps.options import AnyPath
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.core.spec import list_unknown, simplify_name
from lmr.data.labelled import list_labelled
from lmr.images.lists import COLUMNS

LABEL_COLUMNS: tuple[str, ...] = ("label", "class", "class_name", "choice", "category", "truth")
LARGEST = 100_000_000  # bytes of a file
_UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts this before the names of uploaded files


@dataclass(frozen=True)
class TrueLabel:
    """A label of an image: its line in the file (0: none), the path as written, and the class; None for no class."""

    line: int
    path: str
    name: str | None


@dataclass(frozen=True)
class Truth:
    """True labels of images of a run.

    ``classes`` maps the place of an image among those of the run to its class, None for none of the classes.
    ``missing`` are labels of files that are not among them.
    """

    classes: dict[int, int | None]
    missing: tuple[TrueLabel, ...] = ()

    @property
    def known(self) -> dict[int, int]:
        """The labels that are one of the classes."""
        return {place: label for place, label in self.classes.items() if label is not None}

    def __str__(self) -> str:
        others = len(self.classes) - len(self.known)
        count = len(self.classes)
        parts = [f"{count} label" if count == 1 else f"{count} labels"]
        if others:
            parts.append(f"{others} of them none of the classes")
        if self.missing:
            first = self.missing[0]
            parts.append(
                f"{len(self.missing)} more of files that are not among the images, such as {first.path!r} in line "
                f"{first.line}"
            )
        return "; ".join(parts)


def read_truth(
    file: AnyPath, paths: Sequence[AnyPath], names: Sequence[str], roots: Iterable[AnyPath] = (), *, empty: bool = False
) -> Truth:
    """Return the labels in ``file`` of images at ``paths``, with the class ``names``.

    ``file`` may be a folder with one sub-folder per class. A file has a line of column names, with one for the
    path and one for the label, or two cells in every line: path and label. Commas, semicolons or tabs separate the
    cells. Paths are absolute, or relative to the folder of the file, to one of the ``roots``, or to the present folder;
    a name without a folder may also be that of exactly one image. An empty label means none of the classes. Raises
    LmrError for unknown names, for two different labels of one image, and unless ``empty`` if no image has a label.
    """
    rows = _list_rows(file) if os.path.isdir(file) else _read_rows(file)
    if not rows and not empty:
        raise LmrError(
            f"There are no labels in {os.fspath(file)!r}; write lines of path,label into it, or run 'lmr label'."
        )
    known = {simplify_name(name): number for number, name in enumerate(names)}
    if unknown := [row for row in rows if row.name is not None and simplify_name(row.name) not in known]:
        first = unknown[0]
        where = f"Line {first.line} of {os.fspath(file)!r}" if first.line else f"The sub-folders of {os.fspath(file)!r}"
        raise LmrError(
            f"{where}: there is no class {list_unknown([str(first.name)], names)}. "
            "Correct the label, add the class to --labels, or leave the label empty for none of the classes."
        )
    found, missing = dict[int, TrueLabel](), list[TrueLabel]()
    places = _Places(paths, [Path(file).parent, *map(Path, roots), Path()])
    for row in rows:
        place = places.find(row.path)
        if place is None:
            missing.append(row)
            continue
        other = found.setdefault(place, row)
        if other.name != row.name:
            raise LmrError(
                f"Lines {other.line} and {row.line} of {os.fspath(file)!r} give {row.path!r} two labels: "
                f"{other.name or 'none'} and {row.name or 'none'}. Remove one of the lines."
            )
    if not found and not empty:
        raise LmrError(
            f"None of the {len(rows)} labels in {os.fspath(file)!r} is of an image of this run; the first is of "
            f"{rows[0].path!r}. Give the file that belongs to these images."
        )
    classes = {place: None if row.name is None else known[simplify_name(row.name)] for place, row in found.items()}
    return Truth(classes, tuple(missing))


def write_truth(file: AnyPath, labels: Iterable[tuple[str, str | None]]) -> None:
    """Write labels, pairs of path and class, to a file that is replaced as a whole."""
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(("path", "label"))
    rows.writerows((path, name or "") for path, name in labels)
    write_atomically(file, text.getvalue().encode())


class _Places:
    """Finds images by the paths that a file of labels has for them."""

    def __init__(self, paths: Sequence[AnyPath], roots: Sequence[Path]) -> None:
        self.roots = roots
        self.places = {os.path.realpath(path): place for place, path in enumerate(paths)}
        self.names: dict[str, int | None] = {}  # None: several images have this name
        for place, path in enumerate(paths):
            name = os.path.basename(path)
            self.names[name] = None if name in self.names else place

    def find(self, path: str) -> int | None:
        """Return the place of an image among those of the run, or None."""
        for one in _list_spellings(path):
            for root in self.roots:
                place = self.places.get(os.path.realpath(root / one))
                if place is not None:
                    return place
        names = (os.path.basename(one) for one in _list_spellings(path))
        return next((place for name in names if (place := self.names.get(name)) is not None), None)


def _list_spellings(path: str) -> list[str]:
    """Return a path as it is, and as the file that an address of Label Studio stands for."""
    spelled = [path, path.replace("\\", "/")]
    address = urllib.parse.urlsplit(path)
    if path.startswith(("/data/", "http://", "https://")):
        inner = urllib.parse.parse_qs(address.query).get("d", [address.path])[0]
        inner = urllib.parse.unquote(inner)
        spelled += [inner, _UPLOADED.sub("", os.path.basename(inner))]
    return list(dict.fromkeys(spelled))


def _list_rows(folder: AnyPath) -> list[TrueLabel]:
    """Return the images in the sub-folders of a folder with the names of these, and 0 for their lines."""
    found = list_labelled(folder)
    return [TrueLabel(0, str(path), found.names[label]) for path, label in zip(found.paths, found.labels, strict=True)]


def _read_rows(file: AnyPath) -> list[TrueLabel]:
    """Return the labels of a file with their lines. Raises LmrError."""
    name = os.fspath(file)
    if os.path.exists(file) and not os.path.isfile(file):
        raise LmrError(f"{name!r} is not a regular file; give a .csv file of labels.")
    try:
        with open(file, "rb") as opened:
            content = opened.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise LmrError(f"Expected a file of labels of at most {LARGEST // 1_000_000} MB, got a larger {name!r}.")
        text = content.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, delimiter=_find_delimiter(text))
        lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        raise LmrError(f"Cannot read the labels {name!r}: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise LmrError(f"Cannot read the labels {name!r}: {error}; save the file as .csv in UTF-8.") from error
    if not lines:
        return []
    if (found := _find_columns(lines[0][1])) is not None:
        (path, label), lines = found, lines[1:]
    elif len(lines[0][1]) == 2:
        path, label = 0, 1
    else:
        raise LmrError(
            f"Expected a first line with the column names path and label in {name!r}, or lines of path,label; got "
            f"{', '.join(lines[0][1][:6])}."
        )
    rows = []
    for line, row in lines:
        if len(row) <= max(path, label) or not row[path].strip() or "\0" in row[path]:
            raise LmrError(f"Expected a path and a label in line {line} of {name!r}, got {','.join(row)[:80]!r}.")
        rows.append(TrueLabel(line, row[path].strip(), row[label].strip() or None))
    return rows


def _find_delimiter(text: str) -> str:
    """Return what separates the cells: a comma, or the semicolon or tab of a spreadsheet, by the first line."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    for one in ",;\t":
        cells = next(csv.reader([first], delimiter=one), [])
        if len(cells) == 2 or _find_columns(cells) is not None:
            return one
    return ","


def _find_columns(cells: Sequence[str]) -> tuple[int, int] | None:
    """Return the places of the path and the label in a line of column names; None if it is none."""
    columns = [cell.strip().lower() for cell in cells]
    path = next((k for k, column in enumerate(columns) if column in COLUMNS), None)
    label = next((k for k, column in enumerate(columns) if column in LABEL_COLUMNS), None)
    return None if path is None or label is None else (path, label)
