"""State files: one small safetensors file per state, written so that a crash leaves the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping

from torch import Tensor

from lmr.core.classifier import digest_tensors
from lmr.core.errors import LmrError
from lmr.core.files import write_atomically

FORMAT, VERSION = "lmr-state", "1"


def write_state(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """Write tensors and facts to ``path`` atomically, with a digest of both."""
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {"format": FORMAT, "version": VERSION, **facts}
    facts["digest"] = _digest(content, facts)
    write_atomically(path, _sort_facts(save(content, metadata=facts)))


def _digest(tensors: dict[str, Tensor], facts: Mapping[str, str]) -> str:
    """SHA-256 over all tensors and facts."""
    return hashlib.sha256(f"{digest_tensors(tensors)} {json.dumps(facts, sort_keys=True)}".encode()).hexdigest()


def _sort_facts(content: bytes) -> bytes:
    """The same safetensors file with its metadata in order, so that equal states are equal files.

    The library writes metadata in an order that changes from process to process.
    """
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def read_state(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what ``write_state`` wrote; a missing, truncated, damaged or foreign file is an LmrError."""
    from safetensors import SafetensorError, safe_open

    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise LmrError(f"{os.fspath(path)!r} is a folder, pipe or device, not a state file; give the path of the file.")
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            facts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError as error:
        raise LmrError(f"There is no state file {os.fspath(path)!r}.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise LmrError(
            f"{os.fspath(path)!r} is not a complete state file (truncated, or of another kind): {error}"
        ) from error
    if facts.get("format") != FORMAT:
        raise LmrError(f"{os.fspath(path)!r} is a safetensors file but not a saved state of lmr.")
    if facts.get("version") != VERSION:
        raise LmrError(
            f"{os.fspath(path)!r} has state format {facts.get('version')!r}, this lmr reads {VERSION!r}; upgrade lmr."
        )
    written = facts.pop("digest", None)  # version 0.2.0 wrote none
    if written is not None and written != _digest(tensors, facts):
        raise LmrError(
            f"{os.fspath(path)!r} is damaged: its content does not match its digest. Restore it from a copy or start "
            "without it."
        )
    return tensors, facts
