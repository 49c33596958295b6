"""StreamWatch: what a watch knows about one stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from lmr.watch.health import Action, Health, Level
from lmr.watch.signals import Alarm, Signals, Tally, measure

EVENTS = 100  # kept of each stream


@dataclass(frozen=True)
class HealthEvent:
    """A change of the health level: when, why, and the action taken."""

    stream: int
    step: int  # of the stream
    before: Level
    after: Level
    action: Action
    alarms: tuple[Alarm, ...]
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
class StreamWatch:
    """The watch of one stream: a value that never changes."""

    tally: Tally
    health: Health = field(default_factory=Health)
    images: int = 0  # of the stream, so far
    not_finite: int = 0  # steps in a row
    drift: float | None = None
    snapshots: tuple[Snapshot, ...] = ()  # oldest first
    events: tuple[HealthEvent, ...] = ()  # the last ones
    counts: Mapping[str, int] = field(default_factory=dict)  # level -> changes to it by the watch, not by an operator
    first: int | None = None  # the step of the first of these changes

    @property
    def signals(self) -> Signals:
        """The present signals."""
        return measure(self.tally, self.not_finite, self.drift, self.health.step - self.health.born)

    def record(
        self,
        stream: int,
        health: Health,
        action: Action = Action.NONE,
        alarms: tuple[Alarm, ...] = (),
        *,
        operator: bool,
    ) -> Self:
        """Return the watch with a new health, and with the event that this is."""
        event = HealthEvent(
            stream, health.step, self.health.level, health.level, action, alarms, self.signals, operator
        )
        counts, first = self.counts, self.first
        if not operator:
            counts = {**counts, str(event.after): counts.get(str(event.after), 0) + 1}
            first = event.step if first is None else first
        events = (*self.events, event)[-EVENTS:]
        return replace(self, health=health, events=events, counts=counts, first=first)

    def restart_signals(self) -> Self:
        """Return the watch without what was measured on another state."""
        return replace(self, tally=Tally.begin(self.tally.classes.shape[1]), not_finite=0, drift=None)

    def move(self, convert: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Self:
        """Return the watch with its snapshots mapped by ``convert``."""
        moved = (replace(snapshot, tensors=convert(snapshot.tensors)) for snapshot in self.snapshots)
        return replace(self, snapshots=tuple(moved))


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
