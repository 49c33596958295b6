"""``lmr fetch NAME --check``: is a set complete and correct?

Checks the names and numbers of files, the checksums where they are published, and opens a few files.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from lmr.core.errors import LmrError
from lmr.data.corruptions import CORRUPTIONS, EXTRA
from lmr.data.fetch.download import compute_checksum
from lmr.data.fetch.notes import read_made_note
from lmr.data.fetch.sources import CIFAR_C_FILES
from lmr.data.sets.cifar import COUNT, OFFICIAL, Cifar, list_folders, list_places
from lmr.data.sets.cifar_archives import SIDE
from lmr.data.sets.dataset import SEVERITIES, find_first
from lmr.data.sets.imagenet import COUNTS, FOLDERS, ImageNetC, open_folder
from lmr.images.image_files import UnreadableImage, open_image

Say = Callable[[str], None]
_OPENED = 20  # images of a set that are opened, spread over it


def check_set(name: str, folder: Path, *, say: Say = lambda line: None, show: bool = False) -> list[str]:
    """What is wrong with the set in a folder (its own, or the root that contains it); empty if nothing is."""
    if not folder.is_dir():
        return [f"There is no folder {str(folder)!r}."]
    try:
        if name in ("cifar10", "cifar100"):
            return _check_cifar(100 if name == "cifar100" else 10, folder, say)
        if name in ("cifar10-c", "cifar100-c"):
            return _check_cifar_c(100 if name == "cifar100-c" else 10, folder, say, show)
        if name.startswith("imagenet-c"):
            return _check_imagenet_c(name, folder, say, show)
        return _check_imagenet(name, folder, say)
    except LmrError as error:  # what opening the set would raise
        return [str(error)]


def report_check(name: str, folder: Path) -> str | None:
    """Check a set and print what is wrong with it -> None, or the complaint in one line."""
    problems = check_set(name, folder, say=print, show=sys.stderr.isatty())
    if not problems:
        print(f"The dataset {name!r} is complete and correct.")
        return None
    for problem in problems[:20]:
        print(f"  - {problem}")
    more = f" (the first 20 of {len(problems)} are shown)" if len(problems) > 20 else ""
    return f"The dataset {name!r} in {str(folder)!r} is incomplete or incorrect{more}."


def _check_cifar(classes: int, folder: Path, say: Say) -> list[str]:
    path = find_first(folder, list_places(classes))
    if path is None:  # the folder inside the archive
        own = [place for place in list_places(classes) if place.startswith(f"{folder.name}/")]
        path = find_first(folder.parent, own)
    if path is None:
        return [f"No file of CIFAR-{classes} in {str(folder)!r}; looked for {', '.join(list_places(classes))}."]
    found = Cifar(path, classes)
    say(f"{path}: {found.count('clean')} images, digest {found.digest}.")
    if found.digest != OFFICIAL[classes]:
        return [f"The images in {str(path)!r} are not the official test set (digest {OFFICIAL[classes]})."]
    return []


def _check_cifar_c(classes: int, folder: Path, say: Say, show: bool) -> list[str]:
    place = find_first(folder, list_folders(classes)) or folder
    expected, problems = CIFAR_C_FILES[classes], _look_for_note(place)
    if problems:
        return problems
    for name in _watch(expected, show, f"CIFAR-{classes}-C"):
        path = place / f"{name}.npy"
        if not path.is_file():
            problems.append(f"{path.name} is missing.")
            continue
        size = 5 * COUNT * (SIDE * SIDE * 3 if name != "labels" else 1)
        if path.stat().st_size < size:
            problems.append(f"{path.name} has {path.stat().st_size:,} bytes, expected more than {size:,}.")
        elif compute_checksum(path, "md5") != expected[name]:
            problems.append(f"{path.name} does not match the published checksum (md5 {expected[name]}).")
    say(f"{place}: {len(expected) - len(problems)} of {len(expected)} files match the published checksums.")
    return problems


def _check_imagenet(name: str, folder: Path, say: Say) -> list[str]:
    found = open_folder(name, find_first(folder, FOLDERS[name]) or folder)
    labels = found.labels("clean")
    problems = []
    if len(labels) != COUNTS[name]:
        problems.append(f"Expected {COUNTS[name]} images, found {len(labels)}.")
    numbers = Counter(labels.tolist())
    missing = [found.classes[place] for place in range(len(found.classes)) if place not in numbers]
    if missing:
        problems.append(f"{len(missing)} of {len(found.classes)} classes have no image, for example {missing[0]!r}.")
    each = {"imagenet": 50, "imagenet-v2": 10}.get(name)
    unexpected = [found.classes[place] for place, number in sorted(numbers.items()) if each and number != each]
    if unexpected:
        problems.append(
            f"Expected {each} images of every class; {len(unexpected)} classes differ, for example {unexpected[0]!r}."
        )
    problems += _open_some(found.folder, found.files, _OPENED)
    say(f"{found.folder}: {len(labels)} images of {len(numbers)} classes.")
    return problems


def _check_imagenet_c(name: str, folder: Path, say: Say, show: bool) -> list[str]:
    """Every severity of every corruption must contain the same names: those of the list, or 50 of each class."""
    kind = "imagenet-c" if name == "imagenet-c-extra" else name
    domains = EXTRA if name == "imagenet-c-extra" else CORRUPTIONS
    found = ImageNetC(kind, find_first(folder, FOLDERS["imagenet-c"]) or folder)
    problems, whole = _look_for_note(found.folder), 0
    for domain in _watch(domains, show, "ImageNet-C"):
        for severity in SEVERITIES:
            wrong = found.check_files(domain, severity)
            wrong = wrong or _open_some(found.locate(domain) / str(severity), found.list_files(domain), 2)
            problems += wrong
            whole += not wrong
    say(f"{found.folder}: {whole} of {len(domains) * len(SEVERITIES)} folders complete.")
    return problems


def _look_for_note(folder: Path) -> list[str]:
    made = read_made_note(folder)
    return [f"The images in {str(folder)!r} are not the official ones: {made}."] if made else []


def _open_some(folder: Path, files: Sequence[str], count: int) -> list[str]:
    """Open a few files spread over the list -> a message for each that cannot be read."""
    problems = []
    for place in sorted({int(place) for place in np.linspace(0, len(files) - 1, min(count, len(files)))}):
        try:
            open_image(folder / files[place])
        except UnreadableImage as error:
            problems.append(str(error))
    return problems


def _watch(names: Iterable[str], show: bool, what: str) -> Iterable[str]:
    from tqdm import tqdm

    return tqdm(list(names), desc=f"checking {what}", disable=not show)
