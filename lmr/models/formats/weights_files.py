"""Weights files of every container into named tensors, safely: no file can run code, a damaged one gives a sentence.

One wrong byte can make the readers below fail in any way they know, so whatever comes out of them is taken as damage.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.models.formats.torchscript import ForeignContent, is_torchscript, read_torchscript

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "weights")  # what training scripts put weights in
_PREFIXES = ("module.", "_orig_mod.", "model.", "clip_model.", "clip.")  # DataParallel, torch.compile, wrappers


@dataclass(frozen=True)
class Weights:
    """What a weights file holds: tensors by the names the model gives them, the container, and what was around them."""

    tensors: dict[str, Tensor]
    container: str
    unwrapped: tuple[str, ...] = ()  # tables and prefixes around the names that were removed: "state_dict", "module."


def read_weights(path: Path) -> Weights:
    """Read a weights file (or the index of a sharded one) on the CPU, containers and common prefixes taken off."""
    if path.is_dir() or not path.exists():
        raise LmrError(f"Expected a weights file at {str(path)!r}, found {'a folder' if path.is_dir() else 'nothing'}.")
    if path.stat().st_size == 0:
        raise LmrError(f"{str(path)!r} is empty; it may be a download that failed. Fetch the file again.")
    whole = _read_shards(path) if path.name.endswith(".index.json") else _read_one(path)
    tensors, prefixes = _strip_prefixes(whole.tensors)
    if not tensors:
        raise LmrError(f"{str(path)!r} holds no weights: there is no table of named tensors in it.")
    _refuse_unusual(tensors, path)
    return Weights(tensors, whole.container, (*whole.unwrapped, *prefixes))


def list_shards(index: Path) -> list[Path]:
    """The files an index of a sharded checkpoint names, which all lie beside it."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        names = sorted(set(content["weight_map"].values()))
        if not names or any(Path(name).name != name or not name.endswith(SUFFIXES) for name in names):
            raise ValueError("it must name weights files in its own folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LmrError(
            f"{str(index)!r} is not the index of a checkpoint in several files: {_shorten(error)}"
        ) from error
    return [index.parent / name for name in names]


def _read_shards(index: Path) -> Weights:
    shards = list_shards(index)
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise LmrError(
            f"{str(index)!r} names {len(shards)} files, of which {len(missing)} are missing: {', '.join(missing[:5])}. "
            "Put them beside it."
        )
    parts = [_read_one(shard) for shard in shards]
    tensors = {key: tensor for part in parts for key, tensor in part.tensors.items()}
    return Weights(tensors, f"{parts[0].container} in {len(shards)} files", parts[0].unwrapped)


def _read_one(path: Path) -> Weights:
    if path.suffix == ".safetensors":
        return Weights(_read_safetensors(path), "safetensors")
    try:
        if is_torchscript(path):
            return Weights(read_torchscript(path), "TorchScript")
    except ForeignContent as error:
        raise LmrError(
            f"{str(path)!r} holds {error}, which weights do not need, so it was not loaded. Use a file that holds the "
            "weights alone."
        ) from error
    except Exception as error:
        raise _describe_damage(path, error) from error
    return _unwrap(_read_pickle(path), path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except Exception as error:
        raise _describe_damage(path, error) from error


def _read_pickle(path: Path) -> Any:
    """torch.load with weights_only, which builds tensors and plain containers and refuses every other name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols; what cannot be read is an error anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        named = re.search(r"GLOBAL (\S+) was not|unsupported GLOBAL (\S+) whose module", str(error))
        if named:
            raise LmrError(
                f"{str(path)!r} holds Python objects ({named[1] or named[2]}) besides weights, and loading these could "
                "run code, so it was not loaded. Where it comes from, save the weights alone: "
                "torch.save(model.state_dict(), ...)."
            ) from error
        raise _describe_damage(path, error) from error


def _unwrap(content: Any, path: Path) -> Weights:
    """The table of tensors in what a training script saved, as plain tensors; a few containers deep at most."""
    opened: list[str] = []
    for _ in range(4):
        if not isinstance(content, Mapping):
            break
        inner = next((key for key in _CONTAINERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            named = ((key, value) for key, value in content.items() if isinstance(key, str))
            tensors = {key: value.detach() for key, value in named if isinstance(value, Tensor)}
            return Weights(tensors, "pickle", tuple(opened))
        opened.append(inner)
        content = content[inner]
    raise LmrError(
        f"Expected a table of named tensors in {str(path)!r}, found {type(content).__name__}. Save the weights as "
        "torch.save(model.state_dict(), ...)."
    )


def _strip_prefixes(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Take off what wrappers put before every name, and say what that was."""
    stripped: list[str] = []
    while tensors:
        prefix = next((p for p in _PREFIXES if all(key.startswith(p) for key in tensors)), None)
        if prefix is None:
            break
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
        stripped.append(prefix)
    return tensors, stripped


def _refuse_unusual(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Every weight must be an ordinary dense tensor; anything else would fail later, in whatever touches it first."""
    for key, tensor in tensors.items():
        if tensor.device.type == "meta":
            problem, advice = "has no values (it is a meta tensor)", "Save the model after its weights are loaded."
        elif tensor.is_nested or tensor.layout is not torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            problem, advice = f"is not dense ({kind})", "Save it as tensor.to_dense()."
        else:
            continue
        raise LmrError(f"The tensor {key} in {str(path)!r} {problem}, so the file was not loaded. {advice}")


def _describe_damage(path: Path, error: Exception) -> LmrError:
    return LmrError(
        f"{str(path)!r} is not a whole weights file (safetensors, PyTorch or TorchScript): it is cut short, damaged or "
        f"something else. Fetch it again. ({_shorten(error)})"
    )


def _shorten(error: Exception) -> str:
    """The first sentence of a message: what follows in PyTorch's is often advice to load without safety."""
    if isinstance(error, pickle.UnpicklingError) or len(str(error)) < 10:
        return f"it cannot be read as weights: {type(error).__name__}"
    return str(error).strip().partition("\n")[0].partition(". ")[0][:200]
