"""Weights from a TorchScript archive, the form of OpenAI's CLIP files, without running any code in it.

Such an archive is a zip file: ``*/data.pkl`` describes a tree of modules and tensors, ``*/data/N`` hold the values,
``*/code/`` holds a program. torch.jit.load compiles that program; here it is never opened, and the pickle may name
only tensors, their storages and modules, which become plain holders of attributes.
"""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# The name of a storage's class in the pickle, and the type of its values.
_STORAGES: dict[str, torch.dtype] = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "BoolStorage": torch.bool,
}


_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")


class ForeignContent(Exception):  # never leaves the package: weights_files.py turns it into an LmrError
    """The archive names or holds something that weights do not need."""


class Holder:
    """A module of the archive as its attributes alone, without the archive's program."""

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise ForeignContent("a module whose state is not a table of names")
        self.attributes: dict[str, Any] = state


def is_torchscript(path: Path) -> bool:
    """Whether this is a zip file with a program and data, as torch.jit.save writes it."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return any("/code/" in name for name in names) and any(name.endswith("/data.pkl") for name in names)


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """All tensors of the archive on the CPU by their dotted names, as the module's state dict would call them."""
    with zipfile.ZipFile(path) as archive:
        roots = [name.removesuffix("data.pkl") for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise ForeignContent(f"{len(roots)} modules instead of one")
        root = _Unpickler(archive, roots[0]).load()
    if not isinstance(root, Holder):
        raise ForeignContent(f"a {type(root).__name__} instead of a module")
    return dict(_walk(root, "", set()))


def _walk(holder: Holder, prefix: str, above: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Tensors below a holder; a holder that contains itself is refused."""
    if id(holder) in above:
        raise ForeignContent("a module that contains itself")
    for name, value in getattr(holder, "attributes", {}).items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, Holder):
            yield from _walk(value, f"{prefix}{name}.", above | {id(holder)})


class _Unpickler(pickle.Unpickler):
    """Reads data.pkl; every name in it is looked up here, in a list of what weights need, and nowhere else."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(_read_entry(archive, root + "data.pkl")))
        self.archive, self.root = archive, root
        self.storages: dict[str, Tensor] = {}
        order = root + "byteorder"
        written = _read_entry(archive, order).decode() if order in archive.namelist() else "little"
        if written != sys.byteorder:
            raise ForeignContent(f"values in {written}-endian order, which this machine does not read")

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for a name of the pickle."""
        if module == "__torch__" or module.startswith("__torch__."):
            return Holder
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _REBUILD
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch.jit._pickle" and name in _LISTS:
            return list
        if module == "torch.jit._pickle" and name == "restore_type_tag":
            return _UNTAG
        raise ForeignContent(f"the name {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        """The values of one storage [count], read once."""
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[1], torch.dtype):
            raise ForeignContent("a reference that is not a storage")
        _, dtype, key, _, count = pid
        if key not in self.storages:
            data = bytearray(_read_entry(self.archive, f"{self.root}data/{key}"))
            if len(data) != count * dtype.itemsize:
                raise ValueError(f"the storage {key!r} has {len(data)} bytes instead of {count} values")
            self.storages[key] = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return self.storages[key]


def _read_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of an entry, which torch never compresses; a compressed entry could expand to any size."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ForeignContent(f"the compressed entry {name!r}")
    return archive.read(name)


class _Call:
    """A function that a pickle may call but not change: pickles can set attributes of whatever they name."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *values: Any) -> Any:
        return self.function(*values)

    def __setstate__(self, state: object) -> None:
        raise ForeignContent("a change to a function")


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset)


def _drop_tag(value: Any, _: str) -> Any:
    return value


_REBUILD, _UNTAG = _Call(_rebuild_tensor), _Call(_drop_tag)
