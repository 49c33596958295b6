"""State files: one small safetensors file per state, written so that a crash leaves the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmr.core.classifier import digest_tensors
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically
from lmr.core.streams import StreamIds

FORMAT, VERSION = "lmr-state", "1"


def write_state(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """Write tensors and facts to ``path`` atomically, with a digest of both."""
    write_atomically(path, encode_state(tensors, facts))


def encode_state(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> bytes:
    """Return the content of the file that ``write_state`` writes."""
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {"format": FORMAT, "version": VERSION, **facts}
    facts["digest"] = _digest(content, facts)
    header, rest = split_header(save(content, metadata=facts))
    # In order, so that equal states are equal files: the library's order changes from process to process.
    header["__metadata__"] = dict(sorted(facts.items()))
    return join_header(header) + rest


def _digest(tensors: dict[str, Tensor], facts: Mapping[str, str]) -> str:
    """SHA-256 over all tensors and facts."""
    return hashlib.sha256(f"{digest_tensors(tensors)} {json.dumps(facts, sort_keys=True)}".encode()).hexdigest()


def split_header(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file, and the bytes of its tensors."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join_header(header: Mapping[str, Any]) -> bytes:
    """Return a header as the first bytes of a safetensors file."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text


def read_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what ``write_state`` wrote; a missing, truncated, damaged or foreign file is an LmrError."""
    name = repr(os.fspath(path))
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise LmrError(f"{name} is a folder, pipe or device, not a state file; give the path of the file.")
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise LmrError(f"There is no state file {name}.") from error
    except OSError as error:
        raise LmrError(f"Cannot read {name}: {error.strerror or error}.") from error
    return decode_state(content, name)


def decode_state(content: bytes, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and facts of a file's content, checked as in ``read_state``; messages call it ``name``."""
    from safetensors.torch import load

    try:
        tensors = load(content)
        facts = dict(split_header(content)[0].get("__metadata__") or {})
    except Exception as error:  # the reader raises almost any exception on a forged file
        raise LmrError(f"{name} is not a complete state file (truncated, or of another kind): {error}") from error
    if facts.get("format") != FORMAT:
        raise LmrError(f"{name} is a safetensors file but not a saved state of lmr.")
    if facts.get("version") != VERSION:
        raise LmrError(f"{name} has state format {facts.get('version')!r}, this lmr reads {VERSION!r}; upgrade lmr.")
    written = facts.pop("digest", None)  # None in the store of the service, which keeps a checksum of its own
    if written is not None and written != _digest(tensors, facts):
        raise LmrError(
            f"{name} is damaged: its content does not match its digest. Restore it from a copy or start without it."
        )
    return tensors, facts


def convert_tensor(value: Tensor, like: Tensor) -> Tensor:
    """Return a state tensor on the device and in the type of ``like``; the largest number of a type stays so."""
    moved = value.to(like.device, like.dtype)
    if value.dtype == like.dtype or not value.is_floating_point():
        return moved
    before, after = torch.finfo(value.dtype).max, torch.finfo(like.dtype).max
    return moved.clamp_(-after, after).masked_fill_((value >= before).to(like.device), after)


def find_within(value: Tensor, low: float | None, high: float | None) -> Tensor:
    """Check that rows of ``value`` [A, ...] are finite and from ``low`` to ``high``: bool [A]."""
    if not value[:1].numel():
        return torch.ones(len(value), dtype=torch.bool, device=value.device)
    info = torch.finfo(value.dtype) if value.is_floating_point() else torch.iinfo(value.dtype)
    smallest, largest = torch.aminmax(value.flatten(1) if value.ndim > 1 else value.unsqueeze(1), dim=1)
    return (smallest >= (info.min if low is None else low)) & (largest <= (info.max if high is None else high))


def find_tensors(state: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """Return the tensors of a state; an LmrError if it is not of the form that ``state_dict`` returns."""
    if not isinstance(state, Mapping) or not isinstance(state.get("tensors"), Mapping):
        raise LmrError("Expected a state as state_dict() gives it, with its 'tensors'.")
    tensors: Mapping[str, Tensor] = state["tensors"]
    return tensors


def read_names(state: Mapping[str, Any]) -> list[str]:
    """Return the class names of a state; an LmrError if it does not say them."""
    try:
        names = json.loads(str(state["names"]))
    except (KeyError, ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise LmrError("The state does not say its class names; it is damaged, or of an earlier lmr.")
    return names


def number_names(names: Sequence[str]) -> dict[tuple[str, int], int]:
    """Return the number of every class by its name and, as names may be equal, by how many before it have the same."""
    seen: Counter[str] = Counter()
    numbers = {}
    for place, name in enumerate(names):
        numbers[name, seen[name]] = place
        seen[name] += 1
    return numbers


def carry_classes(
    value: Tensor, start: Tensor, axes: list[int], pairs: Sequence[tuple[int, int]], *, mean: bool
) -> Tensor:
    """Return a state tensor [n, ...] for other classes: ``start`` [1, ...], with the classes that stay along all axes.

    ``pairs`` are the old and the new numbers of these classes. With ``mean`` new classes have the mean of the old ones.
    """
    if not axes:
        return value.clone()
    result = start.repeat(len(value), *[1] * (value.ndim - 1))
    if not pairs:
        return result
    if mean:
        result[:] = value.mean(axes, keepdim=True)
    old, new = (_spread_index(value.ndim, axes, torch.tensor(side)) for side in zip(*pairs, strict=True))
    result[new] = value[old]
    return result


def _spread_index(ndim: int, axes: Sequence[int], numbers: Tensor) -> tuple[slice | Tensor, ...]:
    """Return an index that takes these numbers along every one of the axes, and everything along the others."""
    index: list[slice | Tensor] = [slice(None)] * ndim
    for place, axis in enumerate(axes):
        index[axis] = numbers.view([-1 if k == place else 1 for k in range(len(axes))])
    return tuple(index)


class Saved:
    """Saving to files and bytes, for a class that defines ``state_dict`` and ``load_state_dict``."""

    def state_dict(self, streams: StreamIds = None) -> dict[str, Any]:
        """Return a copy of the state of all streams, or of the named ones: its "tensors", and facts about it."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any], streams: StreamIds = None) -> None:
        """Load a state into all streams, or into the named ones. A state that does not fit changes nothing."""
        raise NotImplementedError

    def adopt(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of other classes as one of the classes of this method."""
        raise NotImplementedError

    def save(
        self, path: str | os.PathLike[str], streams: StreamIds = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """Write the state to one safetensors file, atomically, with ``notes`` that ``load`` returns."""
        write_atomically(path, self.dump(streams, notes))

    def load(self, path: str | os.PathLike[str], streams: StreamIds = None, *, adopt: bool = False) -> dict[str, str]:
        """Load a state written by ``save`` and return its notes. A file that does not fit changes nothing.

        With ``adopt`` the state may have other classes, as ``with_classes`` carries them over.
        """
        return self._load(*read_state(path), repr(os.fspath(path)), streams, adopt=adopt)

    def dump(self, streams: StreamIds = None, notes: Mapping[str, str] | None = None) -> bytes:
        """Return the content of the file that ``save`` writes."""
        if not all(isinstance(text, str) for note in (notes or {}).items() for text in note):
            raise LmrError(f"Expected notes as a mapping of strings to strings, got {notes!r}.")
        state = self.state_dict(streams)
        facts = {key: str(value) for key, value in state.items() if key != "tensors"}
        return encode_state(state["tensors"], facts | {f"note.{key}": value for key, value in (notes or {}).items()})

    def restore(self, content: bytes, streams: StreamIds = None) -> dict[str, str]:
        """Load the content of a state file, as ``load`` does."""
        name = "the given state"
        return self._load(*decode_state(content, name.capitalize()), name, streams)

    def _load(
        self,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, str],
        name: str,
        streams: StreamIds,
        *,
        adopt: bool = False,
    ) -> dict[str, str]:
        state: Mapping[str, Any] = {**facts, "tensors": tensors}
        try:
            self.load_state_dict(self.adopt(state) if adopt else state, streams)
        except LmrError as error:
            raise LmrError(f"Cannot use {name}: {error}") from error
        return {key.removeprefix("note."): value for key, value in facts.items() if key.startswith("note.")}
