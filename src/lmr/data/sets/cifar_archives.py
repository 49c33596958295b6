"""Read the test sets of CIFAR-10 and CIFAR-100 from any of the file formats in use.

Python's pickle can run any program, so the python archives are read with an unpickler that builds arrays, lists, texts
and numbers, and knows no other name.
"""

from __future__ import annotations

import importlib
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images [N, 32, 32, 3] and labels [N]
SIDE = 32
_PIXELS = 3 * SIDE * SIDE


class Unexpected(Exception):
    """The file can be read, but its content is wrong; the message completes a longer one."""


def read_archive(path: Path, classes: int) -> Arrays:
    """The test images and labels in a file, whose name gives its format. Raises LmrError."""
    try:
        images, labels = _find_reader(path)(path, classes)
    except Unexpected as error:
        raise LmrError(f"Cannot read CIFAR-{classes} from {str(path)!r}: {error}") from error
    except Exception as error:  # decoders raise almost any exception on damaged data
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise LmrError(
            f"Cannot read CIFAR-{classes} from {str(path)!r}: it is damaged or incomplete ({reason}). Fetch it again "
            f"with `lmr fetch cifar{classes}`."
        ) from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (SIDE, SIDE, 3):
        raise LmrError(
            f"Expected uint8 images [N, {SIDE}, {SIDE}, 3] in {str(path)!r}, got {images.dtype} {list(images.shape)}."
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise LmrError(
            f"Expected {len(images)} whole numbers as labels in {str(path)!r}, got {labels.dtype} {list(labels.shape)}."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise LmrError(
            f"Expected labels from 0 to {classes - 1} in {str(path)!r}, got {labels.min()} to {labels.max()}."
        )
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _find_reader(path: Path) -> Callable[[Path, int], Arrays]:
    for ending, reader in _READERS.items():
        if path.name.endswith(ending):
            return reader
    return _read_pickle_file


def _read_pickle_file(path: Path, classes: int) -> Arrays:
    return _read_pickle(path.read_bytes(), classes)


def _read_pickle(data: bytes, classes: int) -> Arrays:
    content = _Arrays(io.BytesIO(data), encoding="latin1").load()
    key = "labels" if classes == 10 else "fine_labels"
    if not isinstance(content, dict) or not {"data", key} <= set(content):
        raise Unexpected(f"expected a dictionary with data and {key}, as in the python archive.")
    return _make_images(np.asarray(content["data"])), np.asarray(content[key])


class _Arrays(pickle.Unpickler):
    """Builds NumPy arrays and plain values; every other name is refused before anything is called."""

    def find_class(self, module: str, name: str) -> Any:
        """The object a name in the file stands for."""
        package = module.replace("numpy._core", "numpy.core")
        if (package, name) == ("numpy", "ndarray"):
            return name  # only an argument of _reconstruct below, which needs no class
        if (package, name) == ("numpy", "dtype"):
            return _make_dtype
        if (package, name) == ("numpy.core.multiarray", "_reconstruct"):
            return _make_empty
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise Unexpected(
            f"it asks for {module}.{name}, which no CIFAR file needs; do not trust the file, and fetch the set again."
        )


def _make_dtype(kind: str, align: object = False, copy: object = True) -> np.dtype[Any]:
    return np.dtype(str(kind))  # old files pass 0 and 1 for the flags, which NumPy no longer accepts


def _make_empty(kind: object, shape: object, code: object) -> NDArray[Any]:
    """An empty array, which its pickled state then fills."""
    return np.ndarray.__new__(np.ndarray, (0,), np.uint8)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes into an old pickle


def _make_images(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of 3,072 values, the red ones first -> [N, 32, 32, 3]."""
    if rows.ndim != 2 or rows.shape[1] != _PIXELS:
        raise Unexpected(f"expected rows of {_PIXELS} values, got {list(rows.shape)}.")
    return rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _read_binary_file(path: Path, classes: int) -> Arrays:
    return _read_binary(path.read_bytes(), classes)


def _read_binary(data: bytes, classes: int) -> Arrays:
    """One byte of label and 3,072 of image; CIFAR-100 has the coarse label before the fine one."""
    head = 1 if classes == 10 else 2
    if not data or len(data) % (head + _PIXELS):
        raise Unexpected(f"expected records of {head + _PIXELS} bytes, got {len(data)} bytes in all.")
    rows = np.frombuffer(data, np.uint8).reshape(-1, head + _PIXELS)
    return _make_images(rows[:, head:]), rows[:, head - 1].astype(np.int64)


def _read_tar(path: Path, classes: int) -> Arrays:
    """The test file inside the downloaded archive, python or binary."""
    members: dict[str, Callable[[bytes, int], Arrays]] = (
        {"cifar-10-batches-py/test_batch": _read_pickle, "cifar-10-batches-bin/test_batch.bin": _read_binary}
        if classes == 10
        else {"cifar-100-python/test": _read_pickle, "cifar-100-binary/test.bin": _read_binary}
    )
    with tarfile.open(path) as archive:
        for member in archive:
            reader = members.get(member.name.removeprefix("./"))
            file = archive.extractfile(member) if reader else None
            if reader and file:
                return reader(file.read(), classes)
    raise Unexpected(f"expected one of {', '.join(members)} in the archive.")


def _read_npz(path: Path, classes: int) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        if not {"images.npy", "labels.npy"} <= set(archive.namelist()):
            raise Unexpected("expected the arrays images and labels.")
        with archive.open("images.npy") as images, archive.open("labels.npy") as labels:
            return _load_array(images), _load_array(labels)


def _load_array(file: IO[bytes]) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _read_parquet(path: Path, classes: int) -> Arrays:
    """The format of the hub: PNG images in the column img (or image), the label in label or fine_label."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise Unexpected("parquet files need the package pyarrow (pip install pyarrow).") from error
    from PIL import Image

    table = parquet.read_table(path)
    pixels = next((name for name in ("img", "image") if name in table.column_names), None)
    label = next((name for name in ("fine_label", "label") if name in table.column_names), None)
    if pixels is None or label is None:
        raise Unexpected(f"expected the columns img and label (or fine_label), got {', '.join(table.column_names)}.")
    images = [
        np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in table.column(pixels).to_pylist()
    ]
    return np.stack(images), np.asarray(table.column(label).to_pylist())


_READERS: dict[str, Callable[[Path, int], Arrays]] = {
    ".tar.gz": _read_tar,
    ".tar": _read_tar,
    ".bin": _read_binary_file,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}
