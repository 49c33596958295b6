"""StreamWatch: what a watch knows about one stream, and its form in a state file, a JSON text and tensors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.watch.canaries import Canaries, begin_suspicion
from lmr.watch.health import Action, Health, Level
from lmr.watch.signals import Signals, Tally, measure

EVENTS = 100  # kept of each stream
PREFIX = "watch/"  # of the watch's tensors in a state

Part = TypeVar("Part")


@dataclass(frozen=True)
class HealthEvent:
    """A change of the health level: when, why, and the action taken."""

    stream: int
    step: int  # of the stream
    before: Level
    after: Level
    action: Action
    alarms: tuple[str, ...]
    signals: Signals
    operator: bool = False  # True if a person requested it


@dataclass(frozen=True)
class Snapshot:
    """The state of one stream after a step: tensors [1, ...]."""

    step: int
    tensors: dict[str, Tensor]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


@dataclass(frozen=True)
class Undo:
    """The record that undoes the last action: the health before it, the state of the method and its snapshots."""

    health: Health
    tensors: dict[str, Tensor]
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True)
class StreamWatch:
    """The watch of one stream: a value that never changes."""

    tally: Tally
    health: Health = field(default_factory=Health)
    canaries: Canaries = field(default_factory=Canaries)
    images: int = 0  # of the stream, so far
    not_finite: int = 0  # steps in a row
    drift: float | None = None
    snapshots: tuple[Snapshot, ...] = ()  # oldest first
    undo: Undo | None = None
    events: tuple[HealthEvent, ...] = ()  # the last ones
    counts: Mapping[str, int] = field(default_factory=dict)  # level -> changes to it by the watch, not by an operator
    first: int | None = None  # the step of the first of these changes

    @property
    def signals(self) -> Signals:
        """The present signals."""
        kept, steps = self.canaries, self.health.step - self.health.born
        return measure(self.tally, self.not_finite, kept.history, self.drift, kept.earlier, steps)

    @property
    def all_snapshots(self) -> dict[int, Snapshot]:
        """The present snapshots and those that an undo brings back, by their steps."""
        return {one.step: one for one in (*self.snapshots, *(self.undo.snapshots if self.undo else ()))}

    @property
    def states(self) -> list[dict[str, Tensor]]:
        """The states of the method that are kept: snapshots, and the state that an undo brings back."""
        return [one.tensors for one in self.all_snapshots.values()] + ([self.undo.tensors] if self.undo else [])

    def record(
        self, stream: int, health: Health, action: Action = Action.NONE, alarms: tuple[str, ...] = (), *, operator: bool
    ) -> Self:
        """Return the watch with a new health, and with the event that this is."""
        old = self.health.level
        event = HealthEvent(stream, health.step, old, health.level, action, alarms, self.signals, operator)
        suspected = health.level is Level.WATCH and not old.rests  # after a rest the history is fresh already
        canaries = begin_suspicion(self.canaries) if suspected else self.canaries
        counts, first = self.counts, self.first
        if not operator:
            counts = {**counts, str(event.after): counts.get(str(event.after), 0) + 1}
            first = event.step if first is None else first
        events = (*self.events, event)[-EVENTS:]
        return replace(self, health=health, canaries=canaries, events=events, counts=counts, first=first)

    def restart_signals(self) -> Self:
        """Return the watch without what was measured on another state; the canaries themselves stay."""
        canaries = replace(self.canaries, history=(), steps=0, passed=0, earlier=None)
        return replace(
            self, tally=Tally.begin(self.tally.classes.shape[1]), canaries=canaries, not_finite=0, drift=None
        )

    def move(
        self, convert: Callable[[dict[str, Tensor]], dict[str, Tensor]], place: Callable[[Tensor], Tensor]
    ) -> Self:
        """Return the watch with its kept states mapped by ``convert`` and its canaries by ``place``."""
        images, undo = self.canaries.images, self.undo
        moved = {step: replace(one, tensors=convert(one.tensors)) for step, one in self.all_snapshots.items()}
        if undo is not None:
            undo = Undo(undo.health, convert(undo.tensors), tuple(moved[one.step] for one in undo.snapshots))
        canaries = replace(self.canaries, images=None if images is None else place(images))
        return replace(self, canaries=canaries, snapshots=tuple(moved[one.step] for one in self.snapshots), undo=undo)

    def check(self, classifier: ZeroShot) -> None:
        """Raise a ValueError if the tensors of the watch are not valid for the classifier."""
        like = Tally.begin(classifier.classes)
        for key in ("classes", "sums"):
            own, other = getattr(self.tally, key), getattr(like, key)
            if own.shape != other.shape or own.dtype != other.dtype:
                raise ValueError(f"its {key} have another shape or type")
            if not bool(own.isfinite().all()) or bool((own < 0).any()):
                raise ValueError(f"its {key} are negative or not finite")
        images = self.canaries.images
        if (0 if images is None else len(images)) != len(self.canaries.labels):
            raise ValueError("its canaries have no labels")
        shape = classifier.input_shape
        if images is not None and shape and tuple(images.shape[1:]) != shape and not classifier.is_embedded(images):
            raise ValueError("its canaries have another shape")


# Snapshots.


def add_snapshot(kept: Sequence[Snapshot], new: Snapshot, most: int, most_bytes: float) -> tuple[Snapshot, ...]:
    """Add a snapshot, and drop the oldest until at most ``most``, of at most ``most_bytes`` in all, are left."""
    left = [*kept, new]
    while left and (len(left) > most or sum(one.size for one in left) > most_bytes):
        del left[0]
    return tuple(left)


def find_snapshot(kept: Sequence[Snapshot], last: int) -> Snapshot | None:
    """Return the newest snapshot that was taken at step ``last`` or before."""
    return next((one for one in reversed(kept) if one.step <= last), None)


def is_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return True if two states of a stream, of the same method, are equal."""
    return all(torch.equal(value, other[key]) for key, value in one.items())


# The form in a state file.


def pack_all(watches: Sequence[StreamWatch]) -> tuple[str, dict[str, Tensor]]:
    """Return watches as a JSON text and as named tensors, which are not copies."""
    packed = [pack_watch(watch) for watch in watches]
    tensors = {f"{PREFIX}{k}/{key}": value for k, (_, own) in enumerate(packed) for key, value in own.items()}
    events = [{"events": pack_events(watch.events, k)} for k, watch in enumerate(watches)]
    return json.dumps([values | own for (values, _), own in zip(packed, events, strict=True)]), tensors


def unpack_all(text: str, tensors: Mapping[str, Tensor], streams: Sequence[int]) -> list[StreamWatch]:
    """Return the watches of ``streams`` from what ``pack_all`` returned.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: if it is damaged.
    """
    values = json.loads(text)
    if len(values) != len(streams):
        raise ValueError(f"it is of {len(values)} streams, not of {len(streams)}")
    return [_unpack(values[k], _choose(tensors, f"{PREFIX}{k}/"), stream) for k, stream in enumerate(streams)]


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
    values = {
        "compared": watch.tally.compared,
        "health": vars(watch.health),
        "canaries": {key: value for key, value in vars(watch.canaries).items() if key != "images"},
        "images": watch.images,
        "not_finite": watch.not_finite,
        "drift": watch.drift,
        "snapshots": [snapshot.step for snapshot in watch.snapshots],
        "undo": None if watch.undo is None else vars(watch.undo.health),
        "undo_snapshots": [] if watch.undo is None else [snapshot.step for snapshot in watch.undo.snapshots],
        "counts": dict(watch.counts),
        "first": watch.first,
    }
    return values, tensors


def pack_events(events: Sequence[HealthEvent], place: int) -> list[dict[str, Any]]:
    """Return events as values for JSON, with the place of their stream in the state instead of in the method."""
    return [dataclasses.asdict(event) | {"stream": place} for event in events]


def _unpack(values: Mapping[str, Any], tensors: Mapping[str, Tensor], stream: int) -> StreamWatch:
    steps = {*values["snapshots"], *values["undo_snapshots"]}
    kept = {step: Snapshot(step, _choose(tensors, f"snapshot/{step}/")) for step in steps}
    undo = None
    if values["undo"] is not None:
        before = tuple(kept[step] for step in values["undo_snapshots"])
        undo = Undo(_read(Health, values["undo"]), _choose(tensors, "undo/"), before)
    return StreamWatch(
        Tally(tensors["classes"], tensors["sums"], values["compared"]),
        _read(Health, values["health"]),
        _read(Canaries, values["canaries"], images=tensors.get("canaries")),
        values["images"],
        values["not_finite"],
        values["drift"],
        tuple(kept[step] for step in values["snapshots"]),
        undo,
        tuple(
            _read(HealthEvent, event, stream=stream, signals=Signals(**event["signals"])) for event in values["events"]
        ),
        {str(Level(level)): int(count) for level, count in values["counts"].items()},
        None if values["first"] is None else int(values["first"]),
    )


def _read(kind: type[Part], values: Mapping[str, Any], **more: Any) -> Part:
    """Return the dataclass that ``values`` from JSON are of, in the types of its fields."""
    types = {"level": Level, "before": Level, "after": Level, "action": Action}
    return kind(
        **{
            key: tuple(value) if isinstance(value, list) else types[key](value) if key in types else value
            for key, value in values.items()
        }
        | more
    )


def _choose(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}
