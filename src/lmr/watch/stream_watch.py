"""All that a watch knows of one stream, and its form in a state file: a JSON text and tensors."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.watch.canaries import Canaries
from lmr.watch.ladder import Action, Ladder, Rung
from lmr.watch.signals import Signals, Tally, measure
from lmr.watch.snapshots import Snapshot

EVENTS = 100  # kept of each stream
PREFIX = "watch/"  # of the watch's tensors in a state


@dataclass(frozen=True)
class HealthEvent:
    """A change of rung: when, why, and what was done."""

    stream: int
    step: int  # of the stream
    before: Rung
    after: Rung
    action: Action
    alarms: tuple[str, ...]
    signals: Signals
    operator: bool = False  # whether a person asked for it


@dataclass(frozen=True)
class Undo:
    """What undoes the last action: the ladder before it, the state of the method and its snapshots."""

    ladder: Ladder
    tensors: dict[str, Tensor]
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True)
class StreamWatch:
    """The watch of one stream."""

    tally: Tally
    ladder: Ladder = field(default_factory=Ladder)
    canaries: Canaries = field(default_factory=Canaries)
    images: int = 0  # of the stream, so far
    not_finite: int = 0  # steps in a row
    drift: float | None = None
    snapshots: tuple[Snapshot, ...] = ()
    undo: Undo | None = None
    events: tuple[HealthEvent, ...] = ()  # the last ones
    counts: Mapping[str, int] = field(default_factory=dict)  # rung -> how often the watch, no operator, put it there
    first: int | None = None  # the step of the first of these changes

    @property
    def all_snapshots(self) -> dict[int, Snapshot]:
        """By their steps, also those that an undo brings back: most are the same, so each is kept once."""
        return {one.step: one for one in (*self.snapshots, *(self.undo.snapshots if self.undo else ()))}

    @property
    def states(self) -> list[dict[str, Tensor]]:
        """The states of the method that are kept: snapshots, and what undoes the last action."""
        return [one.tensors for one in self.all_snapshots.values()] + ([self.undo.tensors] if self.undo else [])


def measure_watch(watch: StreamWatch) -> Signals:
    """The present signals of a stream."""
    kept = watch.canaries
    steps = watch.ladder.step - watch.ladder.born
    return measure(watch.tally, watch.not_finite, kept.history, watch.drift, kept.earlier, steps)


def move_watch(
    watch: StreamWatch,
    convert: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    place: Callable[[Tensor], Tensor],
) -> StreamWatch:
    """A watch whose kept states are those that ``convert`` gives, and whose canaries those that ``place`` gives."""
    images, undo = watch.canaries.images, watch.undo
    moved = {step: replace(one, tensors=convert(one.tensors)) for step, one in watch.all_snapshots.items()}
    if undo is not None:
        back = tuple(moved[one.step] for one in undo.snapshots)
        undo = Undo(undo.ladder, convert(undo.tensors), back)
    return replace(
        watch,
        canaries=replace(watch.canaries, images=None if images is None else place(images)),
        snapshots=tuple(moved[one.step] for one in watch.snapshots),
        undo=undo,
    )


def pack_all(watches: Sequence[StreamWatch]) -> tuple[str, dict[str, Tensor]]:
    """Some watches as a JSON text and as named tensors, which are not copies."""
    packed = [pack_watch(watch) for watch in watches]
    tensors = {f"{PREFIX}{k}/{key}": value for k, (_, own) in enumerate(packed) for key, value in own.items()}
    events = [{"events": pack_events(watch.events, k)} for k, watch in enumerate(watches)]
    return json.dumps([values | own for (values, _), own in zip(packed, events, strict=True)]), tensors


def unpack_all(text: str, tensors: Mapping[str, Tensor], streams: Sequence[int]) -> list[StreamWatch]:
    """What ``pack_all`` packed, as the watches of ``streams``; ValueError and its like if it is damaged."""
    values = json.loads(text)
    if len(values) != len(streams):
        raise ValueError(f"it is of {len(values)} streams, not of {len(streams)}")
    return [_unpack(values[k], _choose(tensors, f"{PREFIX}{k}/"), stream) for k, stream in enumerate(streams)]


def drop_watch(
    tensors: Mapping[str, Tensor], facts: Mapping[str, str]
) -> tuple[dict[str, Tensor], dict[str, str], list[Rung]]:
    """What a state file holds of the method alone, and the rungs of its streams: none without a watch."""
    try:
        rungs = [Rung(values["ladder"]["rung"]) for values in json.loads(facts.get("watch", "[]"))]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LmrError(f"The watch in the state cannot be read ({error}); the state is damaged.") from error
    own = {key: value for key, value in tensors.items() if not key.startswith(PREFIX)}
    return own, {key: value for key, value in facts.items() if key != "watch"}, rungs


def check_fit(watch: StreamWatch, like: StreamWatch, classifier: ZeroShot) -> None:
    """Raise ValueError if a watch does not have the tensors of ``like``, or canaries that are not the classifier's."""
    for key in ("classes", "sums"):
        own, other = getattr(watch.tally, key), getattr(like.tally, key)
        if own.shape != other.shape or own.dtype != other.dtype:
            raise ValueError(f"its {key} have another shape or type")
        if not bool(own.isfinite().all()) or bool((own < 0).any()):
            raise ValueError(f"its {key} are negative or not finite")
    images = watch.canaries.images
    if (0 if images is None else len(images)) != len(watch.canaries.labels):
        raise ValueError("its canaries have no labels")
    shape = classifier.input_shape
    if images is not None and shape and tuple(images.shape[1:]) != shape and not classifier.is_embedded(images):
        raise ValueError("its canaries have another shape")


def pack_watch(watch: StreamWatch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The watch without its events as values for JSON and as named tensors, which are not copies."""
    tensors = {"classes": watch.tally.classes, "sums": watch.tally.sums}
    if watch.canaries.images is not None:
        tensors["canaries"] = watch.canaries.images
    for place, snapshot in enumerate(watch.snapshots):
        tensors |= {f"snapshot/{place}/{key}": value for key, value in snapshot.tensors.items()}
    if watch.undo is not None:
        tensors |= {f"undo/{key}": value for key, value in watch.undo.tensors.items()}
        here = {one.step for one in watch.snapshots}
        for one in watch.undo.snapshots:
            if one.step not in here:
                tensors |= {f"undo_snapshot/{one.step}/{key}": value for key, value in one.tensors.items()}
    values = {
        "compared": watch.tally.compared,
        "ladder": vars(watch.ladder),
        "labels": watch.canaries.labels,
        "history": watch.canaries.history,
        "earlier": watch.canaries.earlier,
        "steps": watch.canaries.steps,
        "passed": watch.canaries.passed,
        "images": watch.images,
        "not_finite": watch.not_finite,
        "drift": watch.drift,
        "snapshots": [snapshot.step for snapshot in watch.snapshots],
        "undo": None if watch.undo is None else vars(watch.undo.ladder),
        "undo_snapshots": None if watch.undo is None else [snapshot.step for snapshot in watch.undo.snapshots],
        "counts": dict(watch.counts),
        "first": watch.first,
    }
    return values, tensors


def pack_events(events: Sequence[HealthEvent], place: int) -> list[dict[str, Any]]:
    """Events as values for JSON; their stream is its place in the state, whichever it has in the method."""
    return [dataclasses.asdict(event) | {"stream": place} for event in events]


def _unpack(values: Mapping[str, Any], tensors: Mapping[str, Tensor], stream: int) -> StreamWatch:
    """The watch of ``stream``; KeyError, TypeError or ValueError if it is damaged."""
    kept = [Snapshot(step, _choose(tensors, f"snapshot/{k}/")) for k, step in enumerate(values["snapshots"])]
    events = tuple(_read_event(event, stream) for event in values["events"])
    counts, first = _read_counts(values, events)
    return StreamWatch(
        Tally(tensors["classes"], tensors["sums"], values["compared"]),
        _read_ladder(values["ladder"]),
        Canaries(
            tensors.get("canaries"),
            tuple(values["labels"]),
            tuple(values["history"]),
            values["steps"],
            values["passed"],
            values.get("earlier"),
        ),
        values["images"],
        values["not_finite"],
        values["drift"],
        tuple(kept),
        _read_undo(values, tensors, kept),
        events,
        counts,
        first,
    )


def _read_undo(values: Mapping[str, Any], tensors: Mapping[str, Tensor], kept: Sequence[Snapshot]) -> Undo | None:
    if values["undo"] is None:
        return None
    ladder, here = _read_ladder(values["undo"]), {one.step: one for one in kept}
    steps = values.get("undo_snapshots")
    if steps is None:  # an older state kept none: those from before the action are still right
        steps = [step for step in here if step <= ladder.step]
    found = (here.get(step) or Snapshot(step, _choose(tensors, f"undo_snapshot/{step}/")) for step in steps)
    return Undo(ladder, _choose(tensors, "undo/"), tuple(found))


def _read_counts(values: Mapping[str, Any], events: Sequence[HealthEvent]) -> tuple[Mapping[str, int], int | None]:
    """How often the watch put the stream on each rung, and when first; older states have only their last events."""
    if "counts" in values:
        first = None if values["first"] is None else int(values["first"])
        return {str(Rung(rung)): int(count) for rung, count in values["counts"].items()}, first
    own = [event for event in events if not event.operator]
    return Counter(str(event.after) for event in own), own[0].step if own else None


def _read_ladder(values: Mapping[str, Any]) -> Ladder:
    return Ladder(**{**values, "rung": Rung(values["rung"]), "rollbacks": tuple(values["rollbacks"])})


def _read_event(values: Mapping[str, Any], stream: int) -> HealthEvent:
    read = {
        "stream": stream,
        "before": Rung(values["before"]),
        "after": Rung(values["after"]),
        "action": Action(values["action"]),
        "alarms": tuple(values["alarms"]),
        "signals": Signals(**values["signals"]),
    }
    return HealthEvent(**{**values, **read})


def _choose(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}
