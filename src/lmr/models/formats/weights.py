"""Weights files of every container into named tensors, safely: no file can run code, and a damaged one is refused.

One wrong byte can make the readers below raise any exception, so every exception of theirs is reported as damage.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.models.facts import ModelFacts, ModelFormat

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "weights")  # keys of training scripts
_PREFIXES = ("module.", "_orig_mod.", "model.", "clip_model.", "clip.")  # DataParallel, torch.compile, wrappers


@dataclass(frozen=True)
class Weights:
    """The content of a weights file: tensors by their names in the model, the container, and what was removed."""

    tensors: dict[str, Tensor]
    container: str
    unwrapped: tuple[str, ...] = ()  # tables and prefixes around the names that were removed: "state_dict", "module."


def read_weights(path: Path) -> Weights:
    """Read a weights file (or the index of a sharded one) on the CPU, without containers and common prefixes."""
    if path.is_dir() or not path.exists():
        raise LmrError(f"Expected a weights file at {str(path)!r}, found {'a folder' if path.is_dir() else 'nothing'}.")
    if path.stat().st_size == 0:
        raise LmrError(f"{str(path)!r} is empty; a download may have failed. Fetch the file again.")
    whole = _read_shards(path) if path.name.endswith(".index.json") else _read_one(path)
    tensors, prefixes = _strip_prefixes(whole.tensors)
    if not tensors:
        raise LmrError(f"{str(path)!r} holds no weights: there is no table of named tensors in it.")
    _refuse_unusual(tensors, path)
    return Weights(tensors, whole.container, (*whole.unwrapped, *prefixes))


def describe_weights(form: ModelFormat, path: Path, weights: Weights, shown: dict[str, str]) -> ModelFacts:
    """Return the facts of a model that was loaded from a file; ``shown`` are more texts."""
    name, comma, how = form.value.partition(", ")
    shown = {"format": f"{name} ({weights.container}){comma}{how}", "files": str(path), **shown}
    if weights.unwrapped:
        shown["unwrapped"] = ", ".join(weights.unwrapped)
    return ModelFacts(form, path, weights.unwrapped, shown=shown)


def list_shards(index: Path) -> list[Path]:
    """List the files that the index of a sharded checkpoint names, all in its folder."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        names = sorted(set(content["weight_map"].values()))
        if not names or any(Path(name).name != name or not name.endswith(SUFFIXES) for name in names):
            raise ValueError("it must name weights files in its folder")
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
            "Put them into the same folder."
        )
    parts = [_read_one(shard) for shard in shards]
    tensors = {key: tensor for part in parts for key, tensor in part.tensors.items()}
    return Weights(tensors, f"{parts[0].container} in {len(shards)} files", parts[0].unwrapped)


def _read_one(path: Path) -> Weights:
    if path.suffix == ".safetensors":
        return Weights(_read_safetensors(path), "safetensors")
    _refuse_torchscript(path)
    return _unwrap(_read_pickle(path), path)


def _refuse_torchscript(path: Path) -> None:
    """Refuse a zip file with a program, as torch.jit.save and OpenAI's package write it; it is never opened."""
    try:
        with zipfile.ZipFile(path) as archive:
            has_program = any("/code/" in name for name in archive.namelist())
    except Exception:  # another container, or damage that the reader of weights reports
        return
    if has_program:
        raise LmrError(
            f"{str(path)!r} is a TorchScript archive, which holds a program besides weights; expected safetensors or a "
            "state dict. For one of OpenAI's models load it from the hub by its name: "
            'lmr.load("openai/clip-vit-base-patch16"). For your own model save its weights where it was made: '
            'safetensors.torch.save_file(model.state_dict(), "model.safetensors").'
        )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except Exception as error:
        raise _describe_damage(path, error) from error


def _read_pickle(path: Path) -> Any:
    """Read a pickle as weights only: tensors and plain containers are built, every other name is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols; what cannot be read is an error anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        named = re.search(r"GLOBAL (\S+) was not|unsupported GLOBAL (\S+) whose module", str(error))
        if named:
            raise LmrError(
                f"{str(path)!r} holds Python objects ({named[1] or named[2]}) besides weights, and loading these could "
                "run code, so it was not loaded. Save only the weights where it was made: "
                "torch.save(model.state_dict(), ...)."
            ) from error
        raise _describe_damage(path, error) from error


def _unwrap(content: Any, path: Path) -> Weights:
    """Find the table of tensors in the content of a training script's file, at most a few containers deep."""
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
    """Remove the prefixes that wrappers put before every name, and list them."""
    stripped: list[str] = []
    while tensors:
        prefix = next((p for p in _PREFIXES if all(key.startswith(p) for key in tensors)), None)
        if prefix is None:
            break
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
        stripped.append(prefix)
    return tensors, stripped


def _refuse_unusual(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a weight that is not an ordinary dense tensor: it would fail later, in whatever touches it first."""
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
        f"{str(path)!r} is not a complete weights file (safetensors or PyTorch): it is truncated, damaged "
        f"or of another kind. Fetch it again. ({_shorten(error)})"
    )


def _shorten(error: Exception) -> str:
    """Return the first sentence of a message; the rest of PyTorch's is often advice to load unsafely."""
    if isinstance(error, pickle.UnpicklingError) or len(str(error)) < 10:
        return f"it cannot be read as weights: {type(error).__name__}"
    return str(error).strip().partition("\n")[0].partition(". ")[0][:200]
