"""CIFAR-10 and CIFAR-100, clean and corrupted (Hendrycks and Dietterich, 2019).

The corrupted sets come from .npy files in the official layout if these exist, memory mapped: 50,000 rows each, 10,000
for every severity. Otherwise they are made from the clean test set with the constants of the CIFAR files.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError
from lmr.data.dataset import (
    CLEAN,
    ArraySet,
    CorruptedFiles,
    CorruptedOnTheFly,
    Dataset,
    ImageArray,
    Labels,
    describe_missing,
    find_first,
)
from lmr.data.names import ASSETS, read_list
from lmr.data.provenance import compute_checksum, describe_files, describe_test_set

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images [N, 32, 32, 3] and labels [N]

SIDE = 32
COUNT = 10_000  # images of a test set, and rows per severity of a corrupted one
_PIXELS = 3 * SIDE * SIDE

# Digests of the official test sets; tests/data/test_cifar.py computes them from the images.
OFFICIAL = {10: "abecd6539983bd2f", 100: "ac911e257d19c579"}

_FILES = {
    10: ("cifar-10-batches-py/test_batch", "cifar-10-python.tar.gz", "cifar10_test.npz"),
    100: ("cifar-100-python/test", "cifar-100-python.tar.gz", "cifar100_test.npz"),
}


def list_places(classes: int) -> list[str]:
    """Return the paths of the clean test set under the root, in the order in which they are searched."""
    return [*_FILES[classes], *(f"cifar{classes}/{file}" for file in _FILES[classes])]


def list_folders(classes: int) -> list[str]:
    """Return the folders of the corrupted files under the root, in the order in which they are searched."""
    return [f"CIFAR-{classes}-C", f"cifar{classes}-c", f"cifar/CIFAR-{classes}-C"]


@cache
def read_checksums(classes: int) -> dict[str, str]:
    """Return the published MD5 of every file of a corrupted set, by its name without the ending.

    They come from the package torch-uncertainty.
    """
    lines = (ASSETS / f"cifar{classes}_c.md5").read_text("ascii").splitlines()
    return {name.removesuffix(".npy"): checksum for checksum, name in map(str.split, lines)}


def open_cifar(classes: int, root: Path) -> Cifar:
    """Open the clean test set from the first of its files under the root."""
    path = find_first(root, list_places(classes))
    if path is None:
        raise describe_missing(f"cifar{classes}", root, list_places(classes))
    return Cifar(path, classes)


def open_cifar_c(classes: int, root: Path) -> Dataset:
    """Open the corrupted files, or the clean test set corrupted on the fly."""
    name, folder = f"cifar{classes}-c", find_first(root, list_folders(classes))
    has_clean = find_first(root, list_places(classes)) is not None
    if folder is not None:
        return CifarC(folder, classes, partial(open_cifar, classes, root) if has_clean else None)
    if not has_clean:
        hint = f"The clean test set (`lmr fetch cifar{classes}`) is sufficient: it is then corrupted on the fly."
        raise describe_missing(name, root, list_folders(classes), hint)
    return CorruptedOnTheFly(name, open_cifar(classes, root), "cifar")


class Cifar(ArraySet):
    """The 10,000 test images, in memory (30 MB)."""

    def __init__(self, path: Path, classes: int) -> None:
        self.name, self.classes = f"cifar{classes}", read_list(f"cifar{classes}")
        self._images, self._labels = read_archive(path, classes)
        if len(self._images) != COUNT:
            raise LmrError(f"Expected the {COUNT} images of the test set in {str(path)!r}, got {len(self._images)}.")
        self.protocol = {"images": describe_test_set(self.digest == OFFICIAL[classes], COUNT)}


class CifarC(CorruptedFiles):
    """Files in the official layout, one per corruption; only the requested rows are read."""

    def __init__(self, folder: Path, classes: int, open_clean: Callable[[], Dataset] | None = None) -> None:
        super().__init__(folder, open_clean)
        self.name, self.classes = f"cifar{classes}-c", read_list(f"cifar{classes}")
        self._arrays: dict[str, NDArray[np.uint8]] = {}
        self._published: dict[str, bool] = {}  # True for compared files that match the published checksum
        self._labels = self._load_labels()
        origin = describe_files(None, f"CIFAR-{classes}-C")
        self.protocol = {"images": f"{COUNT} images of the test set", "corruptions": origin}

    def _load_labels(self) -> Labels:
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
            found = "an archive of arrays"
        elif array.dtype.kind in kinds and (kinds != "u" or array.dtype == np.uint8) and array.shape == shape:
            return array
        else:
            found = f"{array.dtype} {list(array.shape)}"
        raise LmrError(f"Expected uint8 {list(shape)} in {str(path)!r}, got {found}; {self._advice()}")

    def _advice(self) -> str:
        return f"run `lmr fetch {self.name}`, or move the folder away to corrupt the clean images on the fly."

    def _get(self, domain: str) -> NDArray[np.uint8]:
        if domain not in self._arrays:
            self._arrays[domain] = self._open(domain, (5 * COUNT, SIDE, SIDE, 3))
        return self._arrays[domain]

    @property
    def _identity(self) -> bytes:
        return self._labels.astype("<i8").tobytes()

    def _has(self, domain: str) -> bool:
        return (self.folder / f"{domain}.npy").is_file()

    def _sample(self, domain: str, severity: int) -> list[str | bytes]:
        """Return 100 rows of the file."""
        return [self._get(domain)[(severity - 1) * COUNT : severity * COUNT : COUNT // 100].tobytes()]

    def _read_labels(self, domain: str) -> Labels:
        return self._labels

    def _read_files(self, domain: str, severity: int, indices: list[int]) -> list[ImageArray]:
        rows = self._get(domain)
        return [np.array(rows[(severity - 1) * COUNT + index]) for index in indices]

    def describe_part(self, domains: Sequence[str]) -> dict[str, str]:
        """Return the protocol, with the result of comparing the files with the published checksums.

        Each file is read completely once, in less than a second.
        """
        files = [domain for domain in domains if domain != CLEAN]
        if not files:
            return super().describe_part(domains)
        different = [f"{name}.npy" for name in ("labels", *files) if not self._is_published(name)]
        origin = describe_files(not different, f"CIFAR-{len(self.classes)}-C", different)
        return super().describe_part(domains) | {"corruptions": origin}

    def _is_published(self, name: str) -> bool:
        if name not in self._published:
            checksum = compute_checksum(self.folder / f"{name}.npy", "md5")
            self._published[name] = checksum == read_checksums(len(self.classes))[name]
        return self._published[name]


class Unexpected(Exception):
    """A readable file with wrong content; the message completes a longer one."""


def read_archive(path: Path, classes: int) -> Arrays:
    """Return the images and labels in a file of any of the formats in use, chosen by its name. Raises LmrError."""
    try:
        read = {".npz": _read_npz, ".gz": _read_tar}.get(path.suffix, _read_pickle_file)
        images, labels = read(path, classes)
    except Unexpected as error:
        raise LmrError(f"Cannot read CIFAR-{classes} from {str(path)!r}: {error}") from error
    except Exception as error:  # decoders raise almost any exception on damaged data
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise LmrError(
            f"Cannot read CIFAR-{classes} from {str(path)!r}: it is damaged or incomplete ({reason}). Fetch it again "
            f"with `lmr fetch cifar{classes}`."
        ) from error
    wanted = f"[N, {SIDE}, {SIDE}, 3]"
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (SIDE, SIDE, 3):
        raise LmrError(f"Expected uint8 images {wanted} in {str(path)!r}, got {images.dtype} {list(images.shape)}.")
    whole = labels.shape == images.shape[:1] and labels.dtype.kind in "iu"
    if not whole or (len(labels) and not 0 <= labels.min() <= labels.max() < classes):
        found = f"from {labels.min()} to {labels.max()}" if whole else f"{labels.dtype} {list(labels.shape)}"
        raise LmrError(
            f"Expected {len(images)} whole numbers from 0 to {classes - 1} as labels in {str(path)!r}, got {found}."
        )
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _read_pickle_file(path: Path, classes: int) -> Arrays:
    return _read_pickle(path.read_bytes(), classes)


def _read_pickle(data: bytes, classes: int) -> Arrays:
    content = _Arrays(io.BytesIO(data), encoding="latin1").load()
    key = "labels" if classes == 10 else "fine_labels"
    if not isinstance(content, dict) or not {"data", key} <= set(content):
        raise Unexpected(f"expected a dictionary with data and {key}, as in the python archive.")
    return _make_images(np.asarray(content["data"])), np.asarray(content[key])


class _Arrays(pickle.Unpickler):
    """An unpickler of NumPy arrays and plain values, which refuses every other name before anything is called.

    Python's pickle can run any program otherwise.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the object for a name in the file."""
        package = module.replace("numpy._core", "numpy.core")
        if (package, name) in _ALLOWED:
            return _ALLOWED[package, name]
        raise Unexpected(
            f"it requires {module}.{name}, which no CIFAR file needs; do not trust the file, and fetch the set again."
        )


def _make_dtype(kind: str, align: object = False, copy: object = True) -> np.dtype[Any]:
    return np.dtype(str(kind))  # old files pass 0 and 1 for the flags, which NumPy no longer accepts


def _make_empty(kind: object, shape: object, code: object) -> NDArray[Any]:
    """Return an empty array, which its pickled state then fills."""
    return np.ndarray.__new__(np.ndarray, (0,), np.uint8)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")  # Python 3 writes bytes into an old pickle this way


_ALLOWED = {  # what a name in a file stands for
    ("numpy", "ndarray"): None,  # only an argument of _reconstruct, which needs no class
    ("numpy", "dtype"): _make_dtype,
    ("numpy.core.multiarray", "_reconstruct"): _make_empty,
    ("_codecs", "encode"): _encode,
}


def _make_images(rows: NDArray[Any]) -> NDArray[Any]:
    """Turn rows of 3,072 values, the red ones first, into images [N, 32, 32, 3]."""
    if rows.ndim != 2 or rows.shape[1] != _PIXELS:
        raise Unexpected(f"expected rows of {_PIXELS} values, got {list(rows.shape)}.")
    return rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _read_tar(path: Path, classes: int) -> Arrays:
    """Read the test file inside the downloaded archive."""
    with tarfile.open(path) as archive:
        file = archive.extractfile(_FILES[classes][0])
        assert file is not None
        return _read_pickle(file.read(), classes)


def _read_npz(path: Path, classes: int) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        if not {"images.npy", "labels.npy"} <= set(archive.namelist()):
            raise Unexpected("expected the arrays images and labels.")
        with archive.open("images.npy") as images, archive.open("labels.npy") as labels:
            return _load_array(images), _load_array(labels)


def _load_array(file: IO[bytes]) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
