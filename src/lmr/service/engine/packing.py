"""Packing of the state of a stream as bytes: one file for what every step changes, and parts for the rest.

The file holds the tensors of the method, as ``method.save`` writes them. Its header is the same for all streams, so it
is made once. Parts are the images and snapshots of a watch, and images that wait for a step. A part is written only if
it is new, which is known without reading it, because watches are immutable values. A file that is mostly zeros, as of
a stream that does not adapt yet, is compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.state import decode_state, encode_state, join_header, split_header
from lmr.service.engine.compute import ServedMethod
from lmr.service.store.sql_store import CLASSES
from lmr.service.store.stored_types import StoredState
from lmr.watch.signals import Tally
from lmr.watch.stream_watch import StreamWatch
from lmr.watch.watch_file import PREFIX, pack_events, pack_watch
from lmr.watch.watched import Watched

Written = dict[str, Any]  # the parts in the store, as the immutable values that they were made of
METHOD = "method"  # the name of the method's spec in an identity
_PART = "A part of the stored state"
_COMPRESSED = b"lmr-zlib"  # a file of tensors begins with its number of bytes before them, which is never so large


@dataclass(frozen=True, eq=False)
class WaitingImage:
    """An answered image that waits for a step: the one at ``place`` of request ``seq``."""

    image: Tensor
    seq: int
    place: int


def describe_identity(method: ServedMethod) -> dict[str, str]:
    """Return the model, the classes and the method to which states belong, for ``Store``."""
    facts = method.classifier.fingerprint
    return {"model": facts["backbone"][:16], CLASSES: facts["classes"][:16], METHOD: method.spec}


class Packer:
    """Packing of the rows of a method, watched or not."""

    def __init__(self, method: ServedMethod) -> None:
        self.method = method
        self._watched = method if isinstance(method, Watched) else None
        self._inner = self._watched.method if self._watched else method
        header, _ = split_header(self._inner.dump([0]))
        del header["__metadata__"]["digest"]  # a checksum is stored beside the file
        self._header = join_header(header)
        del header["__metadata__"]
        self._order = sorted(header, key=lambda name: int(header[name]["data_offsets"][0]))

    def pack(
        self, rows: Sequence[int], waiting: Sequence[Sequence[WaitingImage]], written: Sequence[Written]
    ) -> list[StoredState]:
        """Return the states of ``rows`` with their waiting images; ``written`` is updated in place."""
        contents = self._copy_rows(rows)
        return [
            self._pack_one(row, content, images, parts)
            for row, content, images, parts in zip(rows, contents, waiting, written, strict=True)
        ]

    def unpack(self, row: int, stored: StoredState) -> tuple[list[WaitingImage], Written]:
        """Load a state into a row; return its waiting images and its written parts. LmrError if it is damaged."""
        tensors, facts = decode_state(decompress(stored.content), "The stored state")
        parts = {name: content for name, content in stored.parts.items() if content is not None}
        if self._watched:
            text, kept = _join_watch(stored.watch, parts)
            facts, tensors = facts | {"watch": text}, tensors | kept
        state: Mapping[str, Any] = {**facts, "tensors": tensors}
        own = self.method.adopt(state)  # another one if it was stored before the classes were changed
        self.method.load_state_dict(own, [row])
        waiting = (name for name in parts if name.startswith("waiting/"))
        names = sorted(waiting, key=lambda name: int(name.partition("/")[2]))
        images = [_decode_waiting(parts[name], self.method.classifier.device) for name in names]
        return images, self._list_parts(row, images) if own is state else dict.fromkeys(parts)

    def _copy_rows(self, rows: Sequence[int]) -> list[bytes]:
        """Return the file of the method's tensors for each row."""
        state, index = self._inner.state, torch.tensor(rows, device=self._inner.classifier.device)
        columns = [state[name][index].cpu().reshape(len(rows), -1) for name in self._order if state[name].numel()]
        lines = torch.cat([column.view(torch.uint8) for column in columns], 1)
        return [compress(self._header + line.numpy().tobytes()) for line in lines]

    def _pack_one(self, row: int, content: bytes, waiting: Sequence[WaitingImage], written: Written) -> StoredState:
        parts = self._list_parts(row, waiting)
        changed: dict[str, bytes | None] = {
            name: _encode(part) for name, part in parts.items() if not _is_same(part, written.get(name))
        }
        changed |= {name: None for name in written if name not in parts}
        written.clear()
        written.update(parts)
        watch = json.dumps(pack_watch(self._watched.watches[row])[0]) if self._watched else ""
        return StoredState(content, watch, changed)

    def _list_parts(self, row: int, waiting: Sequence[WaitingImage]) -> Written:
        parts: Written = {f"waiting/{k}": image for k, image in enumerate(waiting)}
        return parts | (_split_watch(self._watched.watches[row]) if self._watched else {})


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
    parts |= {f"snapshot/{step}": one.tensors for step, one in watch.all_snapshots.items()}
    if watch.undo is not None:
        parts["undo"] = watch.undo.tensors
    if watch.canaries.images is not None:
        parts |= {f"canary/{k}": image for k, image in enumerate(watch.canaries.images)}
    if watch.events:
        parts["events"] = watch.events
    return parts


def _join_watch(text: str, parts: Mapping[str, bytes]) -> tuple[str, dict[str, Tensor]]:
    """Return a watch as in a state: a JSON text and named tensors. LmrError if something is missing or damaged."""
    try:
        values = json.loads(text)
        values["events"] = json.loads(parts.get("events", b"[]"))
        tensors = _decode(parts["tally"])
        if labels := values["canaries"]["labels"]:
            images = [_decode(parts[f"canary/{k}"])["image"] for k in range(len(labels))]
            tensors["canaries"] = torch.stack(images)
        kept = {f"snapshot/{step}" for step in (*values["snapshots"], *values["undo_snapshots"])}
        for name in kept | ({"undo"} if values["undo"] is not None else set()):
            tensors |= {f"{name}/{key}": value for key, value in _decode(parts[name]).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise LmrError(f"The stored watch cannot be read ({error!r}); it is damaged.") from error
    return json.dumps([values]), {f"{PREFIX}0/{key}": value for key, value in tensors.items()}


def _decode(part: bytes) -> dict[str, Tensor]:
    return decode_state(part, _PART)[0]


def _decode_waiting(part: bytes, device: torch.device) -> WaitingImage:
    tensors, facts = decode_state(part, _PART)
    return WaitingImage(tensors["image"].to(device), int(facts["seq"]), int(facts["place"]))


def _encode(value: Any) -> bytes:
    """Return the bytes of a part."""
    match value:
        case WaitingImage():
            return encode_state({"image": value.image}, {"seq": str(value.seq), "place": str(value.place)})
        case Tally():
            return encode_state({"classes": value.classes, "sums": value.sums}, {})
        case Tensor():
            return encode_state({"image": value}, {})
        case tuple():
            return json.dumps(pack_events(value, 0)).encode()
        case _:
            return encode_state(value, {})


def _is_same(one: Any, other: Any) -> bool:
    """Return True if two parts have the same bytes; False if that is not known without reading much.

    A further canary makes a new tensor of all, in which the earlier ones are equal.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.data_ptr() == other.data_ptr() or torch.equal(one, other)
    return one is other
