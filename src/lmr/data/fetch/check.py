"""``lmr fetch NAME --check``: check that a set is complete and correct.

Compares the names and numbers of files, and checksums if they are published.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.progress import show_progress
from lmr.data.cifar import OFFICIAL, Cifar, list_folders, list_places, read_checksums
from lmr.data.corruptions import CORRUPTIONS, EXTRA
from lmr.data.dataset import SEVERITIES, find_first
from lmr.data.imagenet import COUNTS, FOLDERS, ImageNetC, open_folder
from lmr.data.provenance import compute_checksum

Report = Callable[[str], None]


def check_set(name: str, folder: Path, *, report: Report = lambda line: None) -> list[str]:
    """Return the problems of the set in a folder (its own, or the root that contains it)."""
    if not folder.is_dir():
        return [f"There is no folder {str(folder)!r}."]
    try:
        if name in ("cifar10", "cifar100"):
            return _check_cifar(100 if name == "cifar100" else 10, folder, report)
        if name in ("cifar10-c", "cifar100-c"):
            return _check_cifar_c(100 if name == "cifar100-c" else 10, folder, report)
        if name.startswith("imagenet-c"):
            return _check_imagenet_c(name, folder, report)
        return _check_imagenet(name, folder, report)
    except LmrError as error:  # the set cannot be opened
        return [str(error)]


def report_check(name: str, folder: Path) -> str | None:
    """Check a set and print its problems -> None, or the complaint in one line."""
    problems = check_set(name, folder, report=print)
    if not problems:
        print(f"The dataset {name!r} is complete and correct.")
        return None
    for problem in problems[:20]:
        print(f"  - {problem}")
    more = f" (the first 20 of {len(problems)} are shown)" if len(problems) > 20 else ""
    return f"The dataset {name!r} in {str(folder)!r} is incomplete or incorrect{more}."


def _check_cifar(classes: int, folder: Path, report: Report) -> list[str]:
    path = find_first(folder, list_places(classes))
    if path is None:  # the folder inside the archive
        own = [place for place in list_places(classes) if place.startswith(f"{folder.name}/")]
        path = find_first(folder.parent, own)
    if path is None:
        return [f"No file of CIFAR-{classes} in {str(folder)!r}; looked for {', '.join(list_places(classes))}."]
    found = Cifar(path, classes)
    report(f"{path}: {found.count('clean')} images, digest {found.digest}.")
    if found.digest != OFFICIAL[classes]:
        return [f"The images in {str(path)!r} are not the official test set (digest {OFFICIAL[classes]})."]
    return []


def _check_cifar_c(classes: int, folder: Path, report: Report) -> list[str]:
    place = find_first(folder, list_folders(classes)) or folder
    expected, problems = read_checksums(classes), list[str]()
    left_out = not any((place / f"{name}.npy").exists() for name in EXTRA)  # the fifteen are a benchmark alone
    if left_out:
        expected = {name: checksum for name, checksum in expected.items() if name not in EXTRA}
    with show_progress(f"checking CIFAR-{classes}-C", len(expected), "files") as bar:
        for name, checksum in expected.items():
            path = place / f"{name}.npy"
            if not path.is_file():
                problems.append(f"{path.name} is missing.")
            elif compute_checksum(path, "md5") != checksum:
                problems.append(f"{path.name} does not match the published checksum (md5 {checksum}).")
            bar.advance()
    report(f"{place}: {len(expected) - len(problems)} of {len(expected)} files match the published checksums.")
    if left_out and not problems:
        report(f"The fifteen corruptions are there; the extra ones are not: {', '.join(EXTRA)}.")
    return problems


def _check_imagenet(name: str, folder: Path, report: Report) -> list[str]:
    found = open_folder(name, find_first(folder, FOLDERS[name]) or folder)
    labels = found.labels("clean")
    problems = []
    if len(labels) != COUNTS[name]:
        problems.append(f"Expected {COUNTS[name]} images, found {len(labels)}.")
    present = set(labels.tolist())
    missing = [name for place, name in enumerate(found.classes) if place not in present]
    if missing:
        problems.append(f"{len(missing)} of {len(found.classes)} classes have no image, for example {missing[0]!r}.")
    report(f"{found.folder}: {len(labels)} images of {len(present)} classes.")
    return problems


def _check_imagenet_c(name: str, folder: Path, report: Report) -> list[str]:
    """Check that every severity of every corruption has the same files: those of the list, or 50 of each class."""
    kind = "imagenet-c" if name == "imagenet-c-extra" else name
    domains = EXTRA if name == "imagenet-c-extra" else CORRUPTIONS
    found = ImageNetC(kind, find_first(folder, FOLDERS["imagenet-c"]) or folder)
    problems, whole = list[str](), 0
    with show_progress("checking ImageNet-C", len(domains), "corruptions") as bar:
        for domain in domains:
            for severity in SEVERITIES:
                wrong = found.check_files(domain, severity)
                problems += wrong
                whole += not wrong
            bar.advance()
    report(f"{found.folder}: {whole} of {len(domains) * len(SEVERITIES)} folders complete.")
    return problems
