"""The form of a watch in a state file, a JSON text and tensors, and the one reader of it.

A state may come from a stranger. Every value is read in its exact type, names of alarms, levels and actions come from
closed sets, and numbers that cannot occur together are refused, so that a watch that was read can be used like one that
was made here.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot, is_dense
from lmr.core.errors import LmrError
from lmr.watch.canaries import KEPT, Canaries
from lmr.watch.health import Health, Level
from lmr.watch.signals import POINTS, Tally
from lmr.watch.stream_watch import EVENTS, HealthEvent, Snapshot, StreamWatch, Undo

PREFIX = "watch/"  # of the watch's tensors in a state
_NUMBERS = ("images", "not_finite", "drift", "first")  # fields that are the same in both forms
_MOST_ITEMS = 10_000  # of a list
_LARGEST = 2**53  # of a count; JSON has no exact numbers beyond
_ROUNDING = 1e-6  # relative


@dataclass(frozen=True)
class _SavedWatch:
    """The values of a watch in JSON, beside its canaries."""

    compared: int
    health: Health
    images: int
    not_finite: int
    drift: float | None
    snapshots: tuple[int, ...]
    undo: Health | None
    undo_snapshots: tuple[int, ...]
    counts: dict[Level, int]
    first: int | None
    events: tuple[HealthEvent, ...]
    canaries: Canaries


def pack_all(watches: Sequence[StreamWatch]) -> tuple[str, dict[str, Tensor]]:
    """Return watches as a JSON text and as named tensors, which are not copies."""
    texts: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for k, watch in enumerate(watches):
        values, own = pack_watch(watch)
        texts.append(values | {"events": pack_events(watch.events, k)})
        tensors |= {f"{PREFIX}{k}/{key}": value for key, value in own.items()}
    return json.dumps(texts), tensors


def unpack_all(
    text: str, tensors: Mapping[str, Tensor], streams: Sequence[int], classifier: ZeroShot
) -> list[StreamWatch]:
    """Return the watches of ``streams`` from what ``pack_all`` returned; ValueError if they cannot be of this form."""
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, list) or len(values) != len(streams):
        raise ValueError(f"it is not of {len(streams)} streams")
    found = [_unpack(values[k], _choose(tensors, f"{PREFIX}{k}/"), stream) for k, stream in enumerate(streams)]
    given = {key for key in tensors if key.startswith(PREFIX)}
    if pack_all(found)[1].keys() != given:
        raise ValueError("it has tensors that belong to nothing")
    for watch in found:
        _check_numbers(watch)
        _check_tensors(watch, classifier)
    return found


def drop_watch(
    tensors: Mapping[str, Tensor], facts: Mapping[str, str]
) -> tuple[dict[str, Tensor], dict[str, str], list[Level]]:
    """Return the tensors and facts of the method alone in a state file, and the health levels: none without a watch."""
    try:
        levels = [Level(values["health"]["level"]) for values in json.loads(facts.get("watch", "[]"))]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LmrError(f"The watch in the state cannot be read ({error}); the state is damaged.") from error
    own = {key: value for key, value in tensors.items() if not key.startswith(PREFIX)}
    return own, {key: value for key, value in facts.items() if key != "watch"}, levels


def pack_watch(watch: StreamWatch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a watch without its events as values for JSON and as named tensors, which are not copies."""
    tensors = {"classes": watch.tally.classes, "sums": watch.tally.sums}
    if watch.canaries.images is not None:
        tensors["canaries"] = watch.canaries.images
    for step, snapshot in watch.all_snapshots.items():
        tensors |= {f"snapshot/{step}/{key}": value for key, value in snapshot.tensors.items()}
    if watch.undo is not None:
        tensors |= {f"undo/{key}": value for key, value in watch.undo.tensors.items()}
    values = {key: getattr(watch, key) for key in _NUMBERS} | {
        "compared": watch.tally.compared,
        "health": vars(watch.health),
        "canaries": {key: value for key, value in vars(watch.canaries).items() if key != "images"},
        "snapshots": [snapshot.step for snapshot in watch.snapshots],
        "undo": None if watch.undo is None else vars(watch.undo.health),
        "undo_snapshots": [] if watch.undo is None else [snapshot.step for snapshot in watch.undo.snapshots],
        "counts": dict(watch.counts),
    }
    return values, tensors


def pack_events(events: Sequence[HealthEvent], place: int) -> list[dict[str, Any]]:
    """Return events as values for JSON, with the place of their stream in the state instead of in the method."""
    return [dataclasses.asdict(event) | {"stream": place} for event in events]


def _unpack(values: Any, tensors: Mapping[str, Tensor], stream: int) -> StreamWatch:
    saved: _SavedWatch = _read(_SavedWatch, values, "watch")
    kept = {
        step: Snapshot(step, _choose(tensors, f"snapshot/{step}/"))
        for step in (*saved.snapshots, *saved.undo_snapshots)
    }
    undo = None
    if saved.undo is not None:
        undo = Undo(saved.undo, _choose(tensors, "undo/"), tuple(kept[step] for step in saved.undo_snapshots))
    if not {"classes", "sums"} <= tensors.keys():
        raise ValueError("its classes or sums are missing")
    return StreamWatch(
        Tally(tensors["classes"], tensors["sums"], saved.compared),
        saved.health,
        replace(saved.canaries, images=tensors.get("canaries")),
        snapshots=tuple(kept[step] for step in saved.snapshots),
        undo=undo,
        events=tuple(replace(event, stream=stream) for event in saved.events),
        counts={str(level): count for level, count in saved.counts.items()},
        **{key: getattr(saved, key) for key in _NUMBERS},
    )


# Exact types.


@cache
def _list_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that JSON has, with their types; tensors are elsewhere."""
    return {name: hint for name, hint in get_type_hints(kind).items() if Tensor not in (hint, *get_args(hint))}


def _read(kind: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as ``kind``, or raise a ValueError with its ``name``. Nothing is converted or left out."""
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        fields: dict[str, Any] = _list_fields(kind)  # type: ignore[arg-type]  # a class has a hash
        if isinstance(value, dict) and value.keys() == fields.keys():
            read = {key: _read(hint, value[key], f"{name}.{key}") for key, hint in fields.items()}
            return kind(**read)  # type: ignore[operator]  # it is a class
    elif origin is types.UnionType:  # with None
        (some,) = set(inner) - {types.NoneType}
        return None if value is None else _read(some, value, name)
    elif origin is tuple:
        if isinstance(value, list) and len(value) <= _MOST_ITEMS:
            return tuple(_read(inner[0], item, name) for item in value)
    elif origin is dict:
        if isinstance(value, dict) and len(value) <= _MOST_ITEMS:
            return {_read(inner[0], key, name): _read(inner[1], item, name) for key, item in value.items()}
    elif kind is bool:
        if isinstance(value, bool):
            return value
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
            return value
    elif kind is float:
        number = isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool))
        if number and -_LARGEST <= value <= _LARGEST:  # neither NaN nor infinite
            return float(value)
    elif issubclass(kind, enum.Enum) and isinstance(value, str):
        return kind(value)  # ValueError unless it is one of them
    raise ValueError(f"its {name} is not of its type")


# Numbers that fit together.


def _check_numbers(watch: StreamWatch) -> None:
    """Raise a ValueError for numbers that no stream can have reached."""
    step, kept = watch.health.step, watch.canaries
    for health in (watch.health, *([watch.undo.health] if watch.undo else [])):
        latest = max(health.step, health.since, health.quiet, health.born, *health.rollbacks)
        if latest > step or health.since > health.step or health.born > health.step:
            raise ValueError("its health has steps that are still to come")
        if health.level.rests and not health.rest:
            raise ValueError("it rests without an end")
    for shelf in (watch.snapshots, watch.undo.snapshots if watch.undo else ()):
        steps = [one.step for one in shelf]
        if steps != sorted(set(steps)) or any(one > step for one in steps):
            raise ValueError("its snapshots are not in order")
    if len(watch.events) > EVENTS or any(event.step > step for event in watch.events):
        raise ValueError("it has too many events, or some that are still to come")
    if watch.first is not None and watch.first > step:
        raise ValueError("its first event is still to come")
    shares = (*kept.history, *([kept.earlier] if kept.earlier is not None else []))
    if len(kept.history) > 2 * POINTS or not all(0 <= share <= 1 for share in shares):
        raise ValueError("the history of its canaries is not one of shares")
    if watch.drift is not None and watch.drift < 0:
        raise ValueError("its drift is negative")


def _check_tensors(watch: StreamWatch, classifier: ZeroShot) -> None:
    """Raise a ValueError if the tensors of a watch are not valid for the classifier, but for the kept states."""
    tally, like = watch.tally, Tally.begin(classifier.classes)
    for key in ("classes", "sums"):
        own, other = getattr(tally, key), getattr(like, key)
        if not is_dense(own) or own.shape != other.shape or own.dtype != other.dtype:
            raise ValueError(f"its {key} have another shape or type")
        if not bool(own.isfinite().all()) or bool((own < 0).any()):
            raise ValueError(f"its {key} are negative or not finite")
    # The last image weighs 1 and every earlier one less; entropies are at most ln C, and labels are equal or not.
    *weights, sure = tally.classes.sum(1).tolist()
    low, high = (1 - _ROUNDING, tally.compared * (1 + _ROUNDING)) if tally.compared else (0.0, 0.0)
    most = weights[0] * (math.log(classifier.classes) + 1)
    if not all(low <= weight <= high for weight in weights) or not math.isclose(*weights, rel_tol=_ROUNDING):
        raise ValueError("its classes do not weigh what it has compared")
    limits = [most, most, weights[0] * (1 + _ROUNDING), high, sure * (1 + _ROUNDING)]
    if sure > float(tally.sums[3]) * (1 + _ROUNDING) or bool((tally.sums > torch.tensor(limits).double()).any()):
        raise ValueError("its sums are larger than what it has compared")
    images, labels, shape = watch.canaries.images, watch.canaries.labels, classifier.input_shape
    if images is None:
        if labels:
            raise ValueError("its canaries are missing")
        return
    if not is_dense(images) or images.dtype != KEPT or images.ndim < 2 or len(images) != len(labels) or not labels:
        raise ValueError("its canaries have another type or no labels")
    if shape and tuple(images.shape[1:]) != shape and not classifier.is_embedded(images):
        raise ValueError("its canaries have another shape")
    if not bool(images.isfinite().all()) or max(labels) >= classifier.classes:
        raise ValueError("its canaries are not finite or have labels of no class")


def _choose(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}
