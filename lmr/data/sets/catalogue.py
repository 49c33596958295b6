"""Every set of pictures by its name: where to look, and what to say when nothing is there."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from lmr.core.errors import LmrError
from lmr.data.provenance import DataOrigin, Provenance, describe_pocket_world
from lmr.data.sets.cifar import open_cifar, open_cifar_c
from lmr.data.sets.dataset import CLEAN, CorruptedOnTheFly, Dataset, Labels, Picture, find_root, make_digest
from lmr.data.sets.image_file_set import open_labelled
from lmr.data.sets.imagenet import open_imagenet, open_imagenet_c
from lmr.data.sets.pocket import CLASSES, draw, list_labels

NAMES: tuple[str, ...] = (
    "cifar10", "cifar100", "cifar10-c", "cifar100-c", "imagenet", "imagenet-c", "imagenet-c-5000", "imagenet-a",
    "imagenet-r", "imagenet-sketch", "imagenet-v2", "pocket", "pocket-c",
)  # fmt: skip
POCKET_SEED = 7  # a world the pocket model was not trained on
POCKET_COUNT = 10_000


class PocketWorld(Dataset):
    """The first 10,000 pictures of a world drawn by code; nothing is stored."""

    def __init__(self, seed: int = POCKET_SEED, count: int = POCKET_COUNT) -> None:
        self.name, self.classes, self.seed = "pocket", CLASSES, seed
        self._labels = list_labels(count, seed)
        self.protocol = {"pictures": describe_pocket_world(seed, count)}

    @cached_property
    def digest(self) -> str:
        """Of the world's number and of a few pictures, so that a change of its code shows."""
        pictures, _ = draw(range(0, len(self._labels), max(1, len(self._labels) // 16)), self.seed)
        return make_digest("pocket", str(self.seed), str(len(self._labels)), pictures.tobytes())

    def find_origin(self, domains: Sequence[str]) -> DataOrigin:
        """Drawn here."""
        return DataOrigin(Provenance.MADE)

    def labels(self, domain: str) -> Labels:
        """Places among the 100 classes."""
        self.check(domain)
        return self._labels

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[Picture]:
        """Draw the pictures."""
        indices = [int(index) for index in indices]
        self.check(domain, severity, indices)
        return list(draw(indices, self.seed)[0]) if indices else []


def open_dataset(name: str, root: str | os.PathLike[str] | None = None, *, workers: int = 1) -> Dataset:
    """Open a set by name (one of ``NAMES``), or any pictures as "folder:PATH" or "csv:PATH".

    ``root`` is the folder the sets lie in: $LMR_DATA or ~/.cache/lmr/data if it is not given. ``workers`` processes
    make corrupted pictures where these are made on the fly. Raises LmrError, a sentence that names the command which
    gets a missing set.
    """
    kind, colon, path = str(name).partition(":")
    if colon and kind in ("folder", "csv"):
        return _open_own(name, kind, Path(path).expanduser())
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise LmrError(
            f"There is no set {name!r}.{hint} Choose one of: {', '.join(NAMES)}, or give folder:PATH or csv:PATH."
        )
    if name in ("pocket", "pocket-c"):
        world = PocketWorld()
        return world if name == "pocket" else CorruptedOnTheFly(name, world, "cifar", workers=workers)
    place = find_root(root)
    if name.startswith("cifar"):
        classes = 100 if name.startswith("cifar100") else 10
        return open_cifar_c(classes, place, workers) if name.endswith("-c") else open_cifar(classes, place)
    if name.startswith("imagenet-c"):
        return open_imagenet_c(name, place, workers)
    return open_imagenet(name, place)


def _open_own(name: str, kind: str, path: Path) -> Dataset:
    if kind == "folder" and not path.is_dir():
        raise LmrError(f"There is no folder {str(path)!r}; give folder:PATH, with one sub-folder per class.")
    if kind == "csv" and not path.is_file():
        raise LmrError(f"There is no file {str(path)!r}; give csv:PATH, a table with the columns path and label.")
    return open_labelled(name, path)


__all__ = [
    "CLEAN", "NAMES", "POCKET_COUNT", "POCKET_SEED", "CorruptedOnTheFly", "Dataset", "PocketWorld", "find_root",
    "open_dataset",
]  # fmt: skip
