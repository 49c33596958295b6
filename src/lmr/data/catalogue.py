"""All datasets by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lmr.core.errors import LmrError, WrongType
from lmr.core.registry import load_function
from lmr.core.spec import suggest
from lmr.data.cifar import open_cifar, open_cifar_c
from lmr.data.dataset import (
    BEFORE_CHOICE,
    ClassSubset,
    CorruptedOnTheFly,
    Dataset,
    DerivedSet,
    ImageArray,
    find_root,
    make_digest,
)
from lmr.data.domains import DOMAIN_SETS, DomainSet, open_domains
from lmr.data.imagenet import PREPARED, crop_image, open_imagenet, open_imagenet_c, store_as_jpeg
from lmr.data.labelled import open_labelled
from lmr.data.photographs import Photographs

NAMES: tuple[str, ...] = (
    "cifar10", "cifar100", "cifar10-c", "cifar100-c", "imagenet", "imagenet-c", "imagenet-c-5000", "imagenet-a",
    "imagenet-r", "imagenet-sketch", "imagenet-v2", "photo", "photo-c", *DOMAIN_SETS,
)  # fmt: skip

GROUP = "lmr.data"  # of entry points: functions without arguments that return a dataset
EMBEDDED_SETS = ("photo", "photo-c")  # these come with the package


def open_dataset(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """Open a set by name (one of ``NAMES``), or your own images as "folder:PATH", "domains:PATH" or "csv:PATH".

    "./mine.py:flowers" is the set that the function ``flowers`` of your own file returns; packages register such
    functions under a name, with an entry point in the group ``lmr.data``. "folder-c:PATH" and "csv-c:PATH" are your
    images under corruptions, made while they are read. A name followed by @10 is ten classes of the set, @10.2 another
    ten (2 is a seed), @cat+dog those with these names.
    ``root`` is the folder that contains the sets (default: $LMR_DATA, or ~/.cache/lmr/data). Raises LmrError
    with the command that gets a missing set.
    """
    kind, colon, path = str(name).partition(":")
    if colon and kind in ("folder", "domains", "csv"):
        own = Path(path).expanduser()
        return DomainSet(name, own) if kind == "domains" else open_labelled(name, own)
    if colon and kind in ("folder-c", "csv-c"):
        crops = open_labelled(name, Path(path).expanduser()).prepared_by(crop_image, PREPARED)
        return CorruptedOnTheFly(name, crops, "imagenet", finish=store_as_jpeg)
    whole, at, choice = name.rpartition(BEFORE_CHOICE)
    if at:
        return ClassSubset(name, open_dataset(whole, root), choice)
    if name not in NAMES and (found := load_function(name, GROUP, "dataset")):
        return _check_own(name, *found)
    if name not in NAMES:
        raise LmrError(
            f"There is no dataset {name!r}.{suggest(name, NAMES)} Choose one of: {', '.join(NAMES)}, or give "
            "folder:PATH, domains:PATH, csv:PATH or FILE.py:NAME."
        )
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


class OwnSet(DerivedSet):
    """A set that a user's file makes: another content of the file is another set."""

    def __init__(self, name: str, source: Dataset, digest: str) -> None:
        super().__init__(source)
        self.name, self._file = name, digest

    @property
    def digest(self) -> str:
        """The digest of the set and of the file."""
        return make_digest(super().digest, self._file)

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Return the digest of a part of the set, and of the file."""
        return make_digest(super().digest_part(domains, severity), self._file)

    def _read(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        return self.source.read(domain, severity, indices)


def _check_own(name: str, make: Callable[[], Any], digest: str) -> Dataset:
    made = make()
    if not isinstance(made, Dataset):
        raise WrongType(f"Expected a Dataset from {name!r}, such as open_dataset returns, got {type(made).__name__}.")
    return OwnSet(name, made, digest)
