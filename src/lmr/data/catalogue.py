"""All datasets by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.core.spec import suggest
from lmr.data.cifar import open_cifar, open_cifar_c
from lmr.data.dataset import BEFORE_CHOICE, ClassSubset, CorruptedOnTheFly, Dataset, find_root
from lmr.data.domains import DOMAIN_SETS, DomainSet, open_domains
from lmr.data.imagenet import open_imagenet, open_imagenet_c
from lmr.data.labelled import open_labelled
from lmr.data.photographs import Photographs
from lmr.data.pocket_world import POCKET_COUNT, PocketWorld

NAMES: tuple[str, ...] = (
    "cifar10", "cifar100", "cifar10-c", "cifar100-c", "imagenet", "imagenet-c", "imagenet-c-5000", "imagenet-a",
    "imagenet-r", "imagenet-sketch", "imagenet-v2", "photo", "photo-c", "pocket", "pocket-c", *DOMAIN_SETS,
)  # fmt: skip

EMBEDDED_SETS = ("photo", "photo-c", "pocket", "pocket-c")  # these come with the package
_FIRST_OF_POCKET = re.compile(r"pocket(-c)?-([1-9]\d{0,6})")  # the world is endless: any number of its images


def open_dataset(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """Open a set by name (one of ``NAMES``), or your own images as "folder:PATH", "domains:PATH" or "csv:PATH".

    "pocket-c-2000" is the first 2,000 images of the pocket world instead of 10,000; any number is possible.
    A name followed by @10 is ten classes of the set, @10.2 another ten (2 is a seed), @cat+dog those with these names.
    ``root`` is the folder that contains the sets (default: $LMR_DATA, or ~/.cache/lmr/data). Raises LmrError
    with the command that gets a missing set.
    """
    kind, colon, path = str(name).partition(":")
    if colon and kind in ("folder", "domains", "csv"):
        return _open_own(name, kind, Path(path).expanduser())
    if first := _FIRST_OF_POCKET.fullmatch(str(name)):
        return _open_pocket(name, int(first[2]), corrupted=first[1] is not None)
    whole, at, choice = name.rpartition(BEFORE_CHOICE)
    if at:
        return ClassSubset(name, open_dataset(whole, root), choice)
    if name not in NAMES:
        raise LmrError(
            f"There is no dataset {name!r}.{suggest(name, NAMES)} Choose one of: {', '.join(NAMES)}, or give "
            "folder:PATH, domains:PATH or csv:PATH."
        )
    if name.startswith("pocket"):
        return _open_pocket(name, POCKET_COUNT, corrupted=name == "pocket-c")
    if name == "photo":
        return Photographs()
    if name == "photo-c":  # a photograph has the same noise as the same image in cifar10-c
        photos = Photographs()
        return CorruptedOnTheFly(name, photos, "cifar", numbers=photos.numbers)
    place = find_root(root)
    if name.startswith("cifar"):
        classes = 100 if name.startswith("cifar100") else 10
        return open_cifar_c(classes, place) if name.endswith("-c") else open_cifar(classes, place)
    if name in DOMAIN_SETS:
        return open_domains(name, place)
    if name.startswith("imagenet-c"):
        return open_imagenet_c(name, place)
    return open_imagenet(name, place)


def _open_pocket(name: str, count: int, *, corrupted: bool) -> Dataset:
    world = PocketWorld(count=count)
    return CorruptedOnTheFly(name, world, "cifar") if corrupted else world


def _open_own(name: str, kind: str, path: Path) -> Dataset:
    if kind != "csv" and not path.is_dir():
        inside = "one sub-folder per class" if kind == "folder" else "a folder for each domain, and in it one per class"
        raise LmrError(f"There is no folder {str(path)!r}; give {kind}:PATH, with {inside}.")
    if kind == "csv" and not path.is_file():
        raise LmrError(f"There is no file {str(path)!r}; give csv:PATH, a table with the columns path and label.")
    return DomainSet(name, path) if kind == "domains" else open_labelled(name, path)
