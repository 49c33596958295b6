"""The form of a watch in a state file: a JSON text, read back in exact types, and tensors.

The digest of the file tells damage; one schema, the types of the dataclasses, tells a text of another kind.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from lmr.watch.health import Health
from lmr.watch.signals import Tally
from lmr.watch.stream_watch import HealthEvent, Snapshot, StreamWatch

PREFIX = "watch/"  # of the watch's tensors in a state
_NUMBERS = ("images", "not_finite", "drift", "first")  # fields that are the same in both forms
_SCHEMA: dict[str, Any] = {
    "compared": int,
    "health": Health,
    "images": int,
    "not_finite": int,
    "drift": float | None,
    "first": int | None,
    "counts": dict[str, int],
    "snapshots": tuple[int, ...],
    "events": tuple[HealthEvent, ...],
}


def pack_all(watches: Sequence[StreamWatch]) -> tuple[str, dict[str, Tensor]]:
    """Return watches as a JSON text and as named tensors, which are not copies."""
    texts: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for k, watch in enumerate(watches):
        values, own = pack_watch(watch)
        texts.append(values | {"events": pack_events(watch.events, k)})
        tensors |= {f"{PREFIX}{k}/{key}": value for key, value in own.items()}
    return json.dumps(texts), tensors


def unpack_all(text: str, tensors: Mapping[str, Tensor], streams: Sequence[int], classes: int) -> list[StreamWatch]:
    """Return the watches of ``streams`` from what ``pack_all`` returned; ValueError if they cannot be of this form."""
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, list) or len(values) != len(streams):
        raise ValueError(f"it is not of {len(streams)} streams")
    watches = [_unpack(values[k], _choose(tensors, f"{PREFIX}{k}/"), stream) for k, stream in enumerate(streams)]
    like = Tally.begin(classes)
    for tally in (watch.tally for watch in watches):
        if (tally.classes.shape, tally.sums.shape) != (like.classes.shape, like.sums.shape):
            raise ValueError(f"it is not of {classes} classes")
    if pack_all(watches)[1].keys() != {key for key in tensors if key.startswith(PREFIX)}:
        raise ValueError("it has tensors that belong to nothing")
    return watches


def drop_watch(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and facts of the method alone in a state file."""
    own = {key: value for key, value in tensors.items() if not key.startswith(PREFIX)}
    return own, {key: value for key, value in facts.items() if key != "watch"}


def pack_watch(watch: StreamWatch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a watch without its events as values for JSON and as named tensors, which are not copies."""
    tensors = {"classes": watch.tally.classes, "sums": watch.tally.sums}
    for snapshot in watch.snapshots:
        tensors |= {f"snapshot/{snapshot.step}/{key}": value for key, value in snapshot.tensors.items()}
    values = {key: getattr(watch, key) for key in _NUMBERS} | {
        "compared": watch.tally.compared,
        "health": vars(watch.health),
        "snapshots": [snapshot.step for snapshot in watch.snapshots],
        "counts": dict(watch.counts),
    }
    return values, tensors


def pack_events(events: Sequence[HealthEvent], place: int) -> list[dict[str, Any]]:
    """Return events as values for JSON, with the place of their stream in the state instead of in the method."""
    return [dataclasses.asdict(event) | {"stream": place} for event in events]


def _unpack(values: Any, tensors: Mapping[str, Tensor], stream: int) -> StreamWatch:
    if not isinstance(values, dict) or values.keys() != _SCHEMA.keys():
        raise ValueError(f"expected the keys {', '.join(_SCHEMA)}")
    saved = {key: _read(kind, values[key], key) for key, kind in _SCHEMA.items()}
    if not {"classes", "sums"} <= tensors.keys():
        raise ValueError("its classes or sums are missing")
    return StreamWatch(
        Tally(tensors["classes"].double(), tensors["sums"].double(), saved["compared"]),
        saved["health"],
        snapshots=tuple(Snapshot(step, _choose(tensors, f"snapshot/{step}/")) for step in saved["snapshots"]),
        events=tuple(dataclasses.replace(event, stream=stream) for event in saved["events"]),
        counts=saved["counts"],
        **{key: saved[key] for key in _NUMBERS},
    )


def _read(kind: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as ``kind``, or raise a ValueError with its ``name``."""
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints: dict[str, Any] = _find_hints(kind)  # type: ignore[arg-type]  # a class has a hash
        if isinstance(value, dict) and value.keys() == hints.keys():
            fields = {key: _read(hint, value[key], f"{name}.{key}") for key, hint in hints.items()}
            return kind(**fields)  # type: ignore[operator]  # it is a class
    elif origin is types.UnionType:  # with None
        return None if value is None else _read(inner[0], value, name)
    elif origin is tuple and isinstance(value, list):
        return tuple(_read(inner[0], item, name) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {key: _read(inner[1], item, name) for key, item in value.items()}
    elif origin is None and issubclass(kind, enum.Enum) and isinstance(value, str):
        return kind(value)  # ValueError unless it is one of them
    elif type(value) is kind or (kind is float and type(value) is int):
        return value
    raise ValueError(f"its {name} is not of its type")


@cache
def _find_hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _choose(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}
