"""CIFAR-10 and CIFAR-100, clean and corrupted (Hendrycks and Dietterich, 2019).

The corrupted sets come from .npy files in the official layout if these exist, memory mapped: 50,000 rows each, 10,000
for every severity. Otherwise they are made from the clean test set with the constants of the CIFAR files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError
from lmr.data.corruptions import CORRUPTIONS, EXTRA
from lmr.data.fetch.download import compute_checksum
from lmr.data.fetch.notes import read_made_note
from lmr.data.fetch.sources import CIFAR_C_FILES
from lmr.data.names import read_list
from lmr.data.provenance import DataOrigin, Provenance, describe_files, describe_test_set
from lmr.data.sets.array_set import ArraySet
from lmr.data.sets.cifar_archives import SIDE, read_archive
from lmr.data.sets.dataset import (
    CLEAN,
    SEVERITIES,
    CorruptedOnTheFly,
    Dataset,
    ImageArray,
    Labels,
    describe_missing,
    find_first,
    make_digest,
)

COUNT = 10_000  # images of a test set, and rows per severity of a corrupted one

# Digests of the official test sets; tests/data/sets/test_cifar.py computes them from the images.
OFFICIAL = {10: "abecd6539983bd2f", 100: "ac911e257d19c579"}

_FILES = {
    10: ("cifar-10-batches-py/test_batch", "cifar-10-batches-bin/test_batch.bin", "cifar-10-python.tar.gz",
         "cifar-10-binary.tar.gz", "cifar10_test.npz", "cifar10_test.parquet"),
    100: ("cifar-100-python/test", "cifar-100-binary/test.bin", "cifar-100-python.tar.gz",
          "cifar-100-binary.tar.gz", "cifar100_test.npz", "cifar100_test.parquet"),
}  # fmt: skip
_HUB = {10: "plain_text/test-00000-of-00001.parquet", 100: "cifar100/test-00000-of-00001.parquet"}


def list_places(classes: int) -> list[str]:
    """Where the clean test set is searched under the root, in this order."""
    folder = f"cifar{classes}"
    return [*_FILES[classes], *(f"{folder}/{file}" for file in _FILES[classes]), f"{folder}/{_HUB[classes]}"]


def list_folders(classes: int) -> list[str]:
    """Where the corrupted files are searched under the root."""
    return [f"CIFAR-{classes}-C", f"cifar{classes}-c", f"cifar/CIFAR-{classes}-C"]


class Cifar(ArraySet):
    """The 10,000 test images, in memory (30 MB)."""

    def __init__(self, path: Path, classes: int) -> None:
        self.name, self.classes = f"cifar{classes}", read_list(f"cifar{classes}")
        self._images, self._labels = read_archive(path, classes)
        if len(self._images) != COUNT:
            raise LmrError(f"Expected the {COUNT} images of the test set in {str(path)!r}, got {len(self._images)}.")
        self._provenance = Provenance.OFFICIAL if self.digest == OFFICIAL[classes] else Provenance.OTHER
        self.protocol = {"pictures": describe_test_set(self._provenance, COUNT)}

    def find_origin(self, domains: Sequence[str]) -> DataOrigin:
        """Whether this is the published test set."""
        return DataOrigin(self._provenance)


class CifarC(Dataset):
    """Files in the official layout, one per corruption; only the requested rows are read.

    ``open_clean`` opens the clean test set when the domain "clean" is first used; without it there is no such domain.
    """

    domains = CORRUPTIONS
    severities = SEVERITIES

    def __init__(self, folder: Path, classes: int, open_clean: Callable[[], Dataset] | None = None) -> None:
        self.name, self.classes = f"cifar{classes}-c", read_list(f"cifar{classes}")
        self.folder, self._open_clean = folder, open_clean
        self.others = (*EXTRA, CLEAN) if open_clean else EXTRA
        self._arrays: dict[str, NDArray[np.uint8]] = {}
        self._published: dict[str, bool] = {}  # whether a file that was compared matches the published checksum
        self._labels = self._read_labels()
        words = read_made_note(folder) or describe_files(Provenance.UNCHECKED, f"CIFAR-{classes}-C")
        self.protocol = {"pictures": describe_test_set(Provenance.UNCHECKED, COUNT), "corruptions": words}

    def _read_labels(self) -> Labels:
        labels = self._open("labels", (5 * COUNT,), kinds="iu")
        same = (labels.reshape(5, COUNT) == labels[:COUNT]).all()
        if not same or not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise LmrError(
                f"Expected five times the same {COUNT} labels from 0 to {len(self.classes) - 1} in "
                f"{str(self.folder / 'labels.npy')!r}; {self._advice()}"
            )
        return labels[:COUNT].astype(np.int64)

    def _open(self, name: str, shape: tuple[int, ...], kinds: str = "u") -> NDArray[Any]:
        """Map a file into memory: its header is checked, its rows are read when they are needed."""
        path = self.folder / f"{name}.npy"
        if not path.is_file():
            raise LmrError(f"There is no file {str(path)!r}; {self._advice()}")
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise LmrError(f"The file {str(path)!r} is damaged or incomplete ({error}); {self._advice()}") from error
        if not isinstance(array, np.ndarray):
            array.close()
            raise LmrError(f"{str(path)!r} is an archive of arrays, not an array; {self._advice()}")
        if array.dtype.kind not in kinds or (kinds == "u" and array.dtype != np.uint8) or array.shape != shape:
            found = f"{array.dtype} {list(array.shape)}"
            raise LmrError(f"Expected uint8 {list(shape)} in {str(path)!r}, got {found}; {self._advice()}")
        return array

    def _advice(self) -> str:
        return f"run `lmr fetch {self.name}`, or move the folder away to corrupt the clean images on the fly."

    @cached_property
    def _clean(self) -> Dataset:
        assert self._open_clean is not None  # check() has refused the domain otherwise
        return self._open_clean()

    def _get(self, domain: str) -> NDArray[np.uint8]:
        if domain not in self._arrays:
            self._arrays[domain] = self._open(domain, (5 * COUNT, SIDE, SIDE, 3))
        return self._arrays[domain]

    @cached_property
    def digest(self) -> str:
        """Of every benchmark file that exists, at all severities."""
        existing = [domain for domain in self.domains if (self.folder / f"{domain}.npy").is_file()]
        return make_digest(*(self.digest_part(existing, severity) for severity in self.severities))

    def digest_part(self, domains: Sequence[str], severity: int) -> str:
        """Of the labels, and of 100 rows of each file: reading all of 2 GB would take a minute."""
        parts: list[str | bytes] = [self._labels.astype("<i8").tobytes()]
        for domain in domains:
            if domain == CLEAN:
                parts += [domain, self._clean.digest]
            else:
                rows = self._get(domain)[(severity - 1) * COUNT : severity * COUNT : COUNT // 100]
                parts += [domain, str(severity), rows.tobytes()]
        return make_digest(*parts)

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """Says whether the files are the published ones; each is read completely once, in less than a second."""
        found = self._compare(domains)
        if found is None:
            return super().describe_part(domains)
        words = describe_files(found[0], f"CIFAR-{len(self.classes)}-C", found[1])
        return super().describe_part(domains) | {"corruptions": words}

    def find_origin(self, domains: Sequence[str]) -> DataOrigin:
        """What ``describe_part`` says, as a type."""
        if read_made_note(self.folder):
            return DataOrigin(corruptions=Provenance.MADE)
        found = self._compare(domains)
        return DataOrigin(corruptions=found[0] if found else Provenance.UNCHECKED)

    def _compare(self, domains: Sequence[str]) -> tuple[Provenance, list[str]] | None:
        """Do the files of the domains match the published checksums, and which do not? None: nothing to compare."""
        files = [domain for domain in domains if domain != CLEAN]
        if not files or read_made_note(self.folder):
            return None
        different = [f"{name}.npy" for name in ("labels", *files) if not self._is_published(name)]
        return Provenance.OTHER if different else Provenance.OFFICIAL, different

    def _is_published(self, name: str) -> bool:
        if name not in self._published:
            checksum = compute_checksum(self.folder / f"{name}.npy", "md5")
            self._published[name] = checksum == CIFAR_C_FILES[len(self.classes)][name]
        return self._published[name]

    def labels(self, domain: str) -> Labels:
        """The 10,000 labels, the same at every severity."""
        self.check(domain)
        return self._clean.labels(CLEAN) if domain == CLEAN else self._labels

    def read(self, domain: str, severity: int, indices: Iterable[int]) -> list[ImageArray]:
        """Rows (severity - 1) * 10,000 + index of the corruption's file."""
        indices = [int(index) for index in indices]
        self.check(domain, severity, indices)
        if domain == CLEAN:
            return self._clean.read(CLEAN, 0, indices)
        rows = self._get(domain)
        return [np.array(rows[(severity - 1) * COUNT + index]) for index in indices]


def open_cifar(classes: int, root: Path) -> Cifar:
    """The clean test set from the first of its files under the root."""
    path = find_first(root, list_places(classes))
    if path is None:
        raise describe_missing(f"cifar{classes}", root, list_places(classes))
    return Cifar(path, classes)


def open_cifar_c(classes: int, root: Path, workers: int = 1) -> Dataset:
    """The corrupted files, or the clean test set corrupted on the fly."""
    name, folder = f"cifar{classes}-c", find_first(root, list_folders(classes))
    has_clean = find_first(root, list_places(classes)) is not None
    if folder is not None:
        return CifarC(folder, classes, partial(open_cifar, classes, root) if has_clean else None)
    if not has_clean:
        hint = f"The clean test set (`lmr fetch cifar{classes}`) is sufficient: it is then corrupted on the fly."
        raise describe_missing(name, root, list_folders(classes), hint)
    return CorruptedOnTheFly(name, open_cifar(classes, root), "cifar", workers=workers)
