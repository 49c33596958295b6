"""Packing of the state of a stream as bytes: one file for what every step changes, and parts for the rest.

The file holds the tensors of the method, as ``method.save`` writes them, and what the last images need to be labelled.
Its header is the same for all streams, so it is made once. Parts are the labels, with the images that somebody was
asked to label, if there are any, and the tally, snapshots and events of a watch. A part is written only if it is new.
Parts of a watch are immutable values, so that this is known without reading them. A file that is mostly zeros, as of a
stream that does not adapt yet, is compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.labelled import PER_STEP, Labelled
from lmr.core.method import Method
from lmr.core.prediction import State
from lmr.core.state import decode_state, encode_state, identify, join_header, split_header
from lmr.core.wrapper import Wrapper
from lmr.service.store.sql_store import CLASSES
from lmr.service.store.stored_types import StoredState
from lmr.watch.signals import Tally
from lmr.watch.stream_watch import StreamWatch
from lmr.watch.watch_file import PREFIX, pack_events, pack_watch
from lmr.watch.watched import Watched

Written = dict[str, Any]  # the parts in the store, as the immutable values that they were made of
METHOD = "method"  # the name of the method's spec in an identity
LABELS = "labels"  # the name of their part
_PART = "A part of the stored state"
_COMPRESSED = b"lmr-zlib"  # a file of tensors begins with its number of bytes before them, which is never so large


def describe_identity(method: Method | Wrapper) -> dict[str, str]:
    """Return the model, the classes and the method to which states belong, for ``Store``."""
    facts = method.classifier.fingerprint
    return {"model": facts["backbone"][:16], CLASSES: facts["classes"][:16], METHOD: method.spec}


class Packer:
    """Packing of the rows of a method, watched or not, with its labels."""

    def __init__(self, method: Labelled) -> None:
        self.method = method
        self._watched = method.method if isinstance(method.method, Watched) else None
        self._inner = self._watched.method if self._watched else method.method
        self._names = {key: f"{method.prefix}/{key}" for key in method.own}  # in a state
        tensors = {key: value[:1] for key, value in self._list_tensors().items()}
        header, _ = split_header(encode_state(tensors, identify(method.spec, method.classifier)))
        del header["__metadata__"]["digest"]  # a checksum is stored beside the file
        self._header = join_header(header)
        del header["__metadata__"]
        self._order = sorted(header, key=lambda name: int(header[name]["data_offsets"][0]))

    def pack(self, rows: Sequence[int], written: Sequence[Written]) -> list[StoredState]:
        """Return the states of ``rows``; ``written`` is updated in place."""
        return [self._pack_one(*one) for one in zip(rows, self._copy_rows(rows), written, strict=True)]

    def unpack(self, row: int, stored: StoredState) -> Written:
        """Load a state into a row; return its written parts. LmrError if it is damaged."""
        tensors, facts = decode_state(decompress(stored.content), "The stored state")
        parts = {name: content for name, content in stored.parts.items() if content is not None}
        if self._watched:
            text, kept = _join_watch(stored.watch, parts)
            facts, tensors = facts | {"watch": text}, tensors | kept
        if LABELS in parts:
            tensors |= _decode(parts[LABELS])
        state: Mapping[str, Any] = {**facts, "tensors": tensors}
        own = self.method.adopt(state)  # another one if it was stored before the classes were changed
        self.method.load_state_dict(own, [row])
        return self._list_parts(row) if own is state else dict.fromkeys(parts)

    def _copy_rows(self, rows: Sequence[int]) -> list[bytes]:
        state, index = self._list_tensors(), torch.tensor(rows, device=self.method.classifier.device)
        columns = [state[name][index].cpu().reshape(len(rows), -1) for name in self._order if state[name].numel()]
        lines = torch.cat([column.view(torch.uint8) for column in columns], 1)
        return [compress(self._header + line.numpy().tobytes()) for line in lines]

    def _list_tensors(self) -> State:
        return self._inner.state | {self._names[key]: self.method.own[key] for key in PER_STEP}

    def _pack_one(self, row: int, content: bytes, written: Written) -> StoredState:
        parts = self._list_parts(row)
        if written.get(LABELS) == parts.get(LABELS, b""):
            parts[LABELS] = written[LABELS]
        changed: dict[str, bytes | None] = {
            name: _encode(part) for name, part in parts.items() if part is not written.get(name)
        }
        changed |= {name: None for name in written if name not in parts}
        written.clear()
        written.update(parts)
        watch = json.dumps(pack_watch(self._watched.watches[row])[0]) if self._watched else ""
        return StoredState(content, watch, changed)

    def _list_parts(self, row: int) -> Written:
        parts = _split_watch(self._watched.watches[row]) if self._watched else {}
        labels = self.method.own
        if bool((labels["taught"][row] > 0) | (labels["asked"][row] >= 0).any()):
            own = {key: value[row : row + 1] for key, value in self.method.own.items() if key not in PER_STEP}
            parts[LABELS] = encode_state({self._names[key]: value for key, value in own.items()}, {})
        return parts


def compress(content: bytes) -> bytes:
    """Return a file without its zeros, if it is mostly zeros; others would save less than a tenth."""
    return _COMPRESSED + zlib.compress(content, 1) if content.count(0) > len(content) / 2 else content


def decompress(content: bytes) -> bytes:
    """Return the file that ``compress`` was given."""
    if not content.startswith(_COMPRESSED):
        return content
    try:
        return zlib.decompress(content[len(_COMPRESSED) :])
    except zlib.error as error:
        raise LmrError(f"The stored state cannot be decompressed ({error}); it is damaged.") from error


def _split_watch(watch: StreamWatch) -> Written:
    """Return the parts of a watch; the rest of it is the text of ``pack_watch``."""
    parts: Written = {"tally": watch.tally}
    parts |= {f"snapshot/{snapshot.step}": snapshot.tensors for snapshot in watch.snapshots}
    if watch.events:
        parts["events"] = watch.events
    return parts


def _join_watch(text: str, parts: Mapping[str, bytes]) -> tuple[str, dict[str, Tensor]]:
    """Return a watch as in a state: a JSON text and named tensors. LmrError if something is missing or damaged."""
    try:
        values = json.loads(text)
        values["events"] = json.loads(parts.get("events", b"[]"))
        tensors = _decode(parts["tally"])
        for name in (f"snapshot/{step}" for step in values["snapshots"]):
            tensors |= {f"{name}/{key}": value for key, value in _decode(parts[name]).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise LmrError(f"The stored watch cannot be read ({error!r}); it is damaged.") from error
    return json.dumps([values]), {f"{PREFIX}0/{key}": value for key, value in tensors.items()}


def _decode(part: bytes) -> dict[str, Tensor]:
    return decode_state(part, _PART)[0]


def _encode(value: Any) -> bytes:
    match value:
        case bytes():
            return value
        case Tally():
            return encode_state({"classes": value.classes, "sums": value.sums}, {})
        case tuple():
            return json.dumps(pack_events(value, 0)).encode()
        case _:
            return encode_state(value, {})
