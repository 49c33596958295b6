"""The state of streams: a mapping of tensors [S, ...], one row for each stream.

Functions begin, check, convert and carry such mappings; they know no method. State files are one small safetensors file
each, written so that a crash leaves the old file or the new one.
"""

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

from lmr.core.classifier import ZeroShot, is_dense
from lmr.core.errors import LmrError, MissingFile
from lmr.core.files import write_atomically
from lmr.core.placement import digest_tensors
from lmr.core.prediction import State

FORMAT, VERSION = "lmr-state", "1"
Ranges = dict[str, tuple[float | None, float | None]]  # smallest and largest value of state tensors; None: any finite
Start = Mapping[str, Tensor | int]  # the state of one new stream; numbers are counts

# Rows of tensors.


def begin_rows(start: Start, streams: int, device: torch.device) -> State:
    """Return the state [streams, ...] of new streams from that of one."""
    tensors = {key: torch.as_tensor(value, device=device) for key, value in start.items()}
    return {key: value.unsqueeze(0).repeat(streams, *[1] * value.ndim) for key, value in tensors.items()}


def put_rows(state: State, tensors: Mapping[str, Tensor], rows: Tensor, streams: int) -> None:
    """Make these tensors the rows ``rows`` of a state of so many streams."""
    for key, value in tensors.items():
        if streams == 1:
            state[key] = value.detach().to(rows.device)
        else:
            state[key][rows] = value.to(rows.device)


def convert_rows(tensors: Mapping[str, Tensor], like: State) -> State:
    """Return tensors on the devices and in the types of ``like``."""
    return {key: convert_tensor(value, like[key]) for key, value in tensors.items()}


def move_together(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return tensors on a device, with one transfer for all of them: the program waits for each transfer."""
    away = {key: value for key, value in tensors.items() if value.device != device}
    if not away:
        return dict(tensors)
    dense = [value.reshape(-1).clone(memory_format=torch.contiguous_format) for value in away.values()]
    content = torch.cat([value.view(torch.uint8) for value in dense]).to(device)
    parts = torch.split(content, [value.numel() * value.element_size() for value in away.values()])
    pairs = zip(away.items(), parts, strict=True)
    return {**tensors, **{key: part.clone().view(value.dtype).view(value.shape) for (key, value), part in pairs}}


def check_rows(
    tensors: Mapping[str, Tensor], like: State, rows: int, ranges: Ranges, owner: str, grows: Sequence[str] = ()
) -> None:
    """Refuse tensors that ``owner`` could not continue with, as a state of so many streams in the form of ``like``."""
    if set(tensors) != set(like):
        wrong = ", ".join(sorted(set(tensors) ^ set(like)))
        raise LmrError(f"The state does not have the tensors of {owner}: {wrong} is missing or unexpected.")
    for key, expected in like.items():
        value, fixed = tensors[key], 2 if key in grows else 1
        alike = is_dense(value) and value.ndim == expected.ndim and value.dtype == expected.dtype
        if not alike or value.shape[fixed:] != expected.shape[fixed:]:
            raise LmrError(f"The tensor {key!r} of the state does not have the shape or type {owner} keeps.")
        if len(value) != rows:
            raise LmrError(f"The state holds {len(value)} streams, expected {rows}; name those to load it into.")
        if value.is_floating_point() and not value.isfinite().all():
            raise LmrError(f"The tensor {key!r} of the state holds NaN or infinite values; the state is damaged.")
    if len({tensors[key].shape[1] for key in grows}) > 1:
        raise LmrError("The growing tensors of the state do not have the same length; the state is damaged.")
    for key, value in tensors.items():
        low, high = ranges.get(key, (None, None))
        if not bool(find_within(value, low, high).all()):
            limits = f"from {low} to {high}" if high is not None else f"of at least {low}"
            raise LmrError(f"Expected values {limits} in the tensor {key!r} of the state; the state is damaged.")


def carry_rows(
    tensors: Mapping[str, Tensor],
    start: State,
    wider: State,
    names: tuple[Sequence[str], Sequence[str]],
    class_sums: Sequence[str],
) -> State:
    """Return tensors [n, ...] for other classes: ``names`` are the old class names and the new ones.

    What is kept per class follows the name of its class. The axes of classes are those along which ``wider``, the state
    of a new stream of one more class, differs. New classes have the values of ``start``, the state of a new stream of
    the new classes, or the mean of the old classes in ``class_sums``.
    """
    old, now = map(number_names, names)
    pairs = [(old[name], place) for name, place in now.items() if name in old]
    carried = {}
    for key, value in tensors.items():
        axes = [axis for axis in range(1, value.ndim) if value.shape[axis] != wider[key].shape[axis]]
        carried[key] = carry_classes(value, start[key], axes, pairs, mean=key in class_sums)
    return carried


def identify(spec: str, classifier: ZeroShot) -> dict[str, str]:
    """Return what a state belongs to: the spec of the method, digests of model and classes, and the class names."""
    return {"spec": spec, **classifier.fingerprint, "names": json.dumps(classifier.names)}


def check_identity(state: Mapping[str, Any], spec: str, classifier: ZeroShot) -> Mapping[str, Tensor]:
    """Return the tensors of a state; refuse a state of another method, model or classes."""
    tensors = find_tensors(state)
    if state.get("spec") != spec:
        raise LmrError(f"The state belongs to {state.get('spec')}, not to {spec}; create that one.")
    for part, word in (("backbone", "weights"), ("classes", "classes or prompts")):
        if state.get(part) != classifier.fingerprint[part]:
            hint = ", adopt it (--adopt)" if part == "classes" else ""
            raise LmrError(
                f"The state was made with other {word} than this method has; load those{hint}, or start without it."
            )
    return tensors


# Files.


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
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise MissingFile(f"There is no state file {name}.") from error
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
