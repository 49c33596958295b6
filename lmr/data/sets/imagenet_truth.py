"""ImageNet's validation pictures with their classes: in folders of classes, or in one folder with a list of truths."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.data.sets.image_file_set import list_classes, list_pictures

# The truths in Kaggle's form (ImageId,PredictionString), and one class id per line in the order of the pictures.
KAGGLE, LINES = "LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt"


def list_validation(folder: Path, wnids: Sequence[str]) -> tuple[list[str], list[int]]:
    """Files relative to the folder, by class and name, and their labels. Raises LmrError, a sentence."""
    place_of = {wnid: place for place, wnid in enumerate(wnids)}
    flat = [name for name in list_pictures(folder) if name.startswith("ILSVRC2012_val_")]
    if not flat:
        files = list_classes(folder, wnids)
        return files, [place_of[file.partition("/")[0]] for file in files]
    truths = _read_truths(folder, flat)
    if wrong := next((name for name in flat if truths.get(name) not in place_of), None):
        raise LmrError(f"The list of truths beside {str(folder)!r} has no known class for {wrong!r}.")
    files = sorted(flat, key=lambda name: (truths[name], name))  # the order that folders of classes would have
    return files, [place_of[truths[name]] for name in files]


def _read_truths(folder: Path, flat: Sequence[str]) -> dict[str, str]:
    """From picture to class id."""
    places = [place / name for place in (folder, folder.parent) for name in (KAGGLE, LINES)]
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise LmrError(
            f"The folder {str(folder)!r} holds pictures without classes. Sort them into one folder per class "
            f"(n01440764, …), or put {KAGGLE} (from Kaggle) or {LINES} (one class id per line) beside them."
        )
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LmrError(f"Cannot read the list of classes {str(path)!r}: {error}.") from error
    if path.name == KAGGLE:
        rows = list(csv.reader(text.splitlines()))
        return {f"{row[0]}.JPEG": row[1].split()[0] for row in rows[1:] if len(row) == 2 and row[1].strip()}
    lines = text.split()
    return {f"ILSVRC2012_val_{number:08d}.JPEG": wnid for number, wnid in enumerate(lines, 1)}
