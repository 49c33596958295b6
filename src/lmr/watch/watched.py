"""Watched: a method with a watch of its streams. It steps, predicts, saves and loads as the method does.

Data flows one way: images are compared with the frozen model, signals follow from the comparison, the health level from
the signals, and the action that it requires changes the state of the stream. Each stream is judged alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.core.functional.losses import entropy
from lmr.core.method import Method, MethodModule
from lmr.core.placement import Device
from lmr.core.prediction import AdaptedParameters, Prediction
from lmr.core.state import Saved
from lmr.core.streams import StreamIds, Streams, choose_rows
from lmr.watch.canaries import KEPT, Canaries, collect, count_room, is_due, keep_first, note_check
from lmr.watch.health import Action, Health, Level, advance, enter
from lmr.watch.pace import MORE, YOUNG, Pace, find_pace
from lmr.watch.settings import WatchSettings
from lmr.watch.signals import Alarm, Signals, Tally, add_images, find_alarms, measure_sureness
from lmr.watch.stream_watch import HealthEvent, Snapshot, StreamWatch, Undo, add_snapshot, find_snapshot, is_same
from lmr.watch.watch_file import PREFIX, pack_all, unpack_all


class Watched(Saved):
    """A method with a watch, which notices without labels that a stream's adaptation goes wrong, and rolls it back.

    It is used as the method itself: whatever is not defined here is an attribute of ``method``. ``watches`` holds what
    is known about each stream, in values that never change: a new one takes the place of the old.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> watched = lmr.Watched(lmr.create("lmr", clip, streams=2), lmr.WatchSettings(every=8))
        >>> watched.pause(1)
        >>> answer = watched.step(torch.randn(4, 3, 32, 32), streams=[0, 1, 1, 0])
        >>> answer.info["health"], watched.signals(0).compared
        ({0: 'ok', 1: 'paused'}, 1)
    """

    classifier: ZeroShot  # of the method, as are all attributes that are not defined here
    streams: int

    def __init__(self, method: Method, settings: WatchSettings | None = None) -> None:
        if not isinstance(method, Method):
            raise LmrError(f"Expected a method that is not watched yet, got {type(method).__name__}.")
        if not isinstance(settings, WatchSettings | None):
            raise LmrError(f"Expected lmr.WatchSettings(...) for the settings of a watch, got {settings!r}.")
        self.method, self.settings = method, settings or WatchSettings()
        self.watches = [self._begin_watch() for _ in range(method.streams)]
        self._placement = method._placement

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "method":  # a copy in the making has no method yet
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.method, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.method)})

    def __repr__(self) -> str:
        return f"{self.method!r}, watched"

    # The interface of a method.

    def step(self, images: Tensor, streams: StreamIds = None) -> Prediction:
        """Adapt on this batch and answer it; streams that are paused, rest or are quarantined do not adapt.

        ``info["health"]`` has the health level of each stream of the batch, ``info["signals"]`` its signals,
        ``info["events"]`` the changes of level, and ``info["compared"]`` the images of each stream that were compared,
        with the frozen model's labels.
        """
        with self._session():
            checked, batch = self.method._check(images, streams)
            first = self.method._choose_first(checked)
            parts = split_batch(batch, self.watches, self.every, self.every_young)
            frozen = self._answer_frozen(first, parts)
            parts = [replace(part, watch=self._check_canaries(part)) for part in parts]
            answer = self._answer(checked, batch, parts, frozen)  # the last call that can fail; no state changed before
            finite = answer.logits.isfinite().all(1).tolist()
            events = []
            for part in parts:
                self.watches[part.stream] = self._observe(part, first, answer, frozen, finite)
                events += self._advance(part.stream, len(part.compared))
            return replace(answer, info=answer.info | describe_batch(parts, self.watches, events, frozen))

    def predict(self, images: Tensor, streams: StreamIds = None) -> Prediction:
        """Answer with the present state, a quarantined stream as zero-shot, and change nothing."""
        with self._session(), torch.no_grad():
            checked, batch = self.method._check(images, streams)
            ids = batch.spread(batch.active)
            quarantined = torch.tensor([level is Level.QUARANTINED for level in self.health], device=ids.device)[ids]
            if not bool(quarantined.any()):
                return self.method.predict(images, streams)
            answer = self.method.predict(checked, ids)
            frozen = self.classifier(self.method._choose_first(checked))
            return replace(answer, logits=choose_rows(quarantined, frozen, answer.logits))

    def as_module(self) -> nn.Module:
        """Return an ``nn.Module`` whose ``forward(images)`` adapts on the batch and returns its logits."""
        return MethodModule(self)  # type: ignore[arg-type]  # it is used as a method

    def export_parameters(self, stream: int = 0) -> AdaptedParameters:
        """Return the present model of one stream as constants; that of a quarantined stream is the frozen model."""
        with self._session():
            if self.watches[self._check_stream(stream)].health.level is Level.QUARANTINED:
                return AdaptedParameters(self.classifier.prototypes.clone())
            return self.method.export_parameters(stream)

    def reset(self, streams: StreamIds = None) -> None:
        """Return all streams, or the named ones, to their start: an action of an operator, which ``undo`` takes back.

        A paused stream stays paused, any other adapts again. The signals start anew; the canaries and the events stay.
        """
        with self._session():
            for stream in self.method._rows(streams).tolist():
                watch, before = self.watches[stream], self._copy_state(stream)
                level = Level.PAUSED if watch.health.level is Level.PAUSED else Level.OK
                health = Health(level, watch.health.step, since=watch.health.step)
                self._apply(stream, health, Action.RESET, operator=True)
                if not watch.health.step and not watch.events and is_same(before, self._copy_state(stream)):
                    self.watches[stream] = watch  # it was at its start already

    def forget(self, streams: StreamIds = None) -> None:
        """Make all streams, or the named ones, new: the state, the signals, the canaries and the events are lost."""
        with self._session():
            rows = self.method._rows(streams).tolist()
            self.method.reset(rows)
            for stream in rows:
                self.watches[stream] = self._begin_watch()

    def to(self, device: Device | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move the classifier, the state and the watch, in place."""
        self.method.to(device, dtype)
        with self._session():
            return self

    # Health.

    @property
    def health(self) -> list[Level]:
        """The health level of every stream."""
        return [watch.health.level for watch in self.watches]

    @property
    def events(self) -> list[HealthEvent]:
        """Changes of the health level, stream by stream; the last 100 of each."""
        return [event for watch in self.watches for event in watch.events]

    @property
    def first_event(self) -> int | None:
        """The step of a stream at which the watch first changed its level; None if it never did."""
        return min((watch.first for watch in self.watches if watch.first is not None), default=None)

    @property
    def every(self) -> int:
        """One image in this many is compared while nothing is suspected; 0 if none is."""
        return (self.settings.every or self.pace.every) if self.settings.signals else 0

    @property
    def every_young(self) -> int:
        """The same for the first images of a stream: a quarter of ``every``, unless the settings give ``every``."""
        return self.every if self.settings.every else -(-self.every // MORE)

    @cached_property
    def pace(self) -> Pace:
        """The frequency of comparisons and checks that the cost of a step allows, counted when it is first needed."""
        return find_pace(self.method)

    def signals(self, stream: int = 0) -> Signals:
        """Return the present signals of a stream."""
        return self.watches[self._check_stream(stream)].signals

    def count_events(self) -> dict[str, int]:
        """Count the changes to each level by the watch, not by operators; all of them, not only the kept events."""
        return dict(sum((Counter(watch.counts) for watch in self.watches), Counter()))

    def describe_events(self) -> str:
        """Return a sentence about all changes so far."""
        counts = self.count_events()
        if not counts:
            return "The watch saw nothing unusual."
        changes = ", ".join(f"{count} to {level}" for level, count in counts.items())
        return f"The watch changed the health of streams: {changes}."

    # The actions of an operator.

    def pause(self, stream: int = 0) -> None:
        """Answer a stream with its present state, without adapting, until it is resumed."""
        self._set_level(stream, Level.PAUSED)

    def resume(self, stream: int = 0) -> None:
        """Let a stream that rests, is paused or is quarantined adapt again, at the level "watch"."""
        with self._session():
            if self.watches[self._check_stream(stream)].health.level.adapts:
                raise LmrError(f"Stream {stream} adapts already.")
            self._set_level(stream, Level.WATCH)

    def rollback(self, stream: int = 0) -> None:
        """Return a stream to its newest snapshot, or to the one before if its state is that one already.

        It answers without adapting for a while; a paused stream stays paused.
        """
        with self._session():
            watch = self.watches[self._check_stream(stream)]
            there = bool(watch.snapshots) and is_same(self._copy_state(stream), watch.snapshots[-1].tensors)
            older = watch.snapshots[:-1] if there else watch.snapshots
            if not older:
                raise LmrError(f"There is no {'older ' * there}snapshot of stream {stream}; reset it instead.")
            if watch.health.level is Level.PAUSED:
                health = enter(watch.health, Level.PAUSED)
            else:
                health = enter(watch.health, Level.ROLLED_BACK, self.settings.thresholds.rest)
            self._apply(stream, health, Action.ROLL_BACK, snapshot=older[-1], operator=True)

    def undo(self, stream: int = 0) -> None:
        """Undo the last rollback, reset or quarantine of a stream: state and snapshots have the bytes they had before.

        The level is the one before, too, but a paused stream stays paused. The signals start anew, so that the same
        alarm needs new evidence. Another ``undo`` brings back what this one replaces.
        """
        with self._session():
            watch = self.watches[self._check_stream(stream)]
            if watch.undo is None:
                raise LmrError(f"There is nothing to undo in stream {stream}.")
            health = replace(watch.undo.health, step=watch.health.step, quiet=0, seen=0)
            if watch.health.level is Level.PAUSED:
                health = enter(health, Level.PAUSED)
            replaced = Undo(watch.health, self._copy_state(stream), watch.snapshots)
            self._set_state(stream, watch.undo.tensors)
            new = watch.record(stream, health, operator=True).restart_signals()
            self.watches[stream] = replace(new, undo=replaced, snapshots=watch.undo.snapshots)

    # Saved with the state of the method.

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors of the method, and those of the watch."""
        return self.method.state | pack_all(self.watches)[1]

    def state_dict(self, streams: StreamIds = None) -> dict[str, Any]:
        """Return a copy of the state of all streams, or of the named ones, with their watches."""
        with self._session():
            rows = self.method._rows(streams).tolist()
            state = self.method.state_dict(rows)
            text, tensors = pack_all([self.watches[stream] for stream in rows])
            copies = {key: value.clone() for key, value in tensors.items()}
            return state | {"watch": text, "tensors": state["tensors"] | copies}

    def load_state_dict(self, state: Mapping[str, Any], streams: StreamIds = None) -> None:
        """Load a state. The state of a method without a watch starts a new one. One that does not fit changes nothing.

        The settings of the watch are not part of a state: a stream may continue with others.
        """
        with self._session():
            rows = self.method._rows(streams).tolist()
            tensors = self.method._check_identity(state)
            watches = [self._begin_watch() for _ in rows]
            if "watch" in state:
                watches = self._unpack(str(state["watch"]), tensors, rows)
            own = {key: value for key, value in tensors.items() if not key.startswith(PREFIX)}
            self.method.load_state_dict({**self.method._identify(), "tensors": own}, rows)
            for stream, watch in zip(rows, watches, strict=True):
                self.watches[stream] = watch

    def with_classes(self, classifier: ZeroShot) -> Watched:
        """Return the watched method for other classes of the same model, with the states of all its streams.

        Snapshots and the state of an undo follow the class names as the state does. Health and events stay. The signals
        and the canaries depend on all classes, and begin anew.
        """
        new = Watched(self.method.with_classes(classifier), self.settings)
        with self._session():
            new.watches = self._carry_watches(new.method)
        return new

    def adopt(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of other classes as one of the classes of this method, as ``with_classes`` carries it over."""
        with self._session():
            if not isinstance(state, Mapping) or state.get("classes") == self.classifier.fingerprint["classes"]:
                return state
            old = Watched(self.method._stand_in_for(state), self.settings)
            old.load_state_dict(state)
            text, tensors = pack_all(old._carry_watches(self.method))
            kept = old.method._carry(old.method.state, self.method)
            return {**self.method._identify(), "watch": text, "tensors": kept | tensors}

    def _carry_watches(self, new: Method) -> list[StreamWatch]:
        """Return the watches of all streams for the classes of ``new``."""
        moved = (watch.move(lambda state: self.method._carry(state, new)) for watch in self.watches)
        fresh = Tally.begin(new.classifier.classes)
        return [replace(watch.restart_signals(), tally=fresh, canaries=Canaries()) for watch in moved]

    def _unpack(self, text: str, tensors: Mapping[str, Tensor], rows: list[int]) -> list[StreamWatch]:
        """Return the watches in a state; raise an LmrError if they do not fit."""
        try:
            found = unpack_all(text, tensors, rows, self.classifier)
            found = [watch.move(self.method._complete_scores) for watch in found]
            for watch in found:
                for kept in watch.states:
                    if set(kept) != set(self.method.state):
                        raise ValueError("a snapshot of another method")
                    self.method._check_fit(kept, 1)
        except ValueError as error:  # an LmrError is one
            raise LmrError(f"The watch in the state cannot be used ({error}); the state is damaged.") from error
        return [self._move(watch) for watch in found]

    # A step.

    def _answer_frozen(self, images: Tensor, parts: Sequence[StreamPart]) -> dict[int, Tensor]:
        """Return the frozen model's logits [C] of the images that are compared or answered by it, by their places."""
        places = [
            place
            for part in parts
            for place in (part.places if part.watch.health.level is Level.QUARANTINED else part.compared)
        ]
        with torch.no_grad():
            return dict(zip(places, self.classifier(images[places]), strict=True)) if places else {}

    def _check_canaries(self, part: StreamPart) -> StreamWatch:
        """Return the watch of a stream, after a check of its canaries if one is due."""
        kept, level = part.watch.canaries, part.watch.health.level
        suspected = level not in (Level.OK, Level.PAUSED, Level.QUARANTINED)
        confirm = self.settings.thresholds.confirm
        if kept.images is None or not is_due(kept, suspected, len(part.places), confirm, self.pace.spacing):
            return part.watch
        images = kept.images.to(self.classifier.dtype)
        if self.method._holds_views(alone := images.unsqueeze(1)):
            images = alone  # one view of each: the method may not be able to make others, or makes very many
        labels = self.method.predict(images, [part.stream] * len(images)).labels
        return replace(part.watch, canaries=note_check(kept, labels))

    def _answer(
        self, images: Tensor, batch: Streams, parts: Sequence[StreamPart], frozen: Mapping[int, Tensor]
    ) -> Prediction:
        """Answer each stream as its level requires: it adapts, is answered with its state, or as zero-shot."""
        ids = batch.spread(batch.active)
        if all(part.watch.health.level.adapts for part in parts):
            return self.method.step(images, ids)
        adapting = sorted(place for part in parts if part.watch.health.level.adapts for place in part.places)
        resting = sorted({*range(len(images))} - {*adapting})
        rested = self.method.predict(images[resting], ids[resting])
        for part in parts:
            if part.watch.health.level is Level.QUARANTINED:
                for place in part.places:
                    rested.logits[resting.index(place)] = frozen[place]
        if not adapting:
            return rested
        answer = self.method.step(images[adapting], ids[adapting])
        order = torch.tensor(adapting + resting).argsort().to(ids.device)
        return answer.join(rested, order)

    def _observe(
        self, part: StreamPart, images: Tensor, answer: Prediction, frozen: Mapping[int, Tensor], finite: list[bool]
    ) -> StreamWatch:
        """Return the watch of a stream with what this step has shown."""
        old, count = part.watch, len(part.places)
        info = answer.info if self.streams == 1 else answer.info.get("streams", {}).get(part.stream, {})
        valid = info.get("finite", True) and all(finite[place] for place in part.places)
        usable = [place for place in part.compared if finite[place] and bool(frozen[place].isfinite().all())]
        tally, drift = old.tally, info.get("drift", old.drift)
        canaries = replace(old.canaries, steps=old.canaries.steps + 1, passed=old.canaries.passed + count)
        if usable:
            plain = torch.stack([frozen[place] for place in usable])
            both = [answer.logits[usable], plain]
            labels = torch.stack([logits.argmax(1) for logits in both]).cpu()
            entropies = torch.stack([entropy(logits) for logits in both]).double().cpu()
            sureness = measure_sureness(plain).cpu()
            tally = add_images(tally, labels, entropies, sureness, self.settings.thresholds.memory)
            if old.health.level is Level.OK:
                canaries = collect(canaries, images[usable], plain, self._count_room(images[0].numel()))
        return replace(
            old,
            tally=tally,
            canaries=canaries,
            images=old.images + count,
            not_finite=0 if valid else old.not_finite + 1,
            drift=drift if drift is not None and math.isfinite(drift) else None,
        )

    def _advance(self, stream: int, compared: int) -> list[HealthEvent]:
        """Advance the health of a stream by one step, act on it, and return the events of this step."""
        watch, rules, act = self.watches[stream], self.settings.thresholds, self.settings.mode == "on"
        alarms: tuple[Alarm, ...] = ()
        if self.settings.signals:
            alarms = find_alarms(watch.signals, rules, self.classifier.classes, len(watch.canaries.labels))
        snapshot = find_snapshot(watch.snapshots, watch.health.since - rules.quiet)
        health, action = advance(watch.health, alarms, compared, snapshot is not None, rules, act)
        self._apply(stream, health, action, alarms, snapshot)
        period = self.settings.reset_every
        if period and act and health.level is not Level.PAUSED and health.step % period == 0:
            self.method.reset(stream)
            fresh = self.watches[stream].restart_signals()
            self.watches[stream] = replace(fresh, health=replace(fresh.health, born=health.step), snapshots=())
        return [event for event in self.watches[stream].events if event.step == health.step and not event.operator]

    # Changes of the state and the health of a stream.

    def _apply(
        self,
        stream: int,
        health: Health,
        action: Action,
        alarms: tuple[Alarm, ...] = (),
        snapshot: Snapshot | None = None,
        *,
        operator: bool = False,
    ) -> None:
        """Give a stream its new health and carry out the action; a rollback goes to ``snapshot``."""
        watch = self.watches[stream]
        if action in (Action.ROLL_BACK, Action.RESET):
            before, kept = self._copy_state(stream), watch.snapshots[:0]
            if action is Action.ROLL_BACK and snapshot is not None:
                self._set_state(stream, snapshot.tensors)
                kept = tuple(one for one in watch.snapshots if one.step <= snapshot.step)
            else:
                self.method.reset(stream)
                health = replace(health, born=health.step)
            undo = Undo(watch.health, before, watch.snapshots)
            if watch.undo is not None and is_same(before, self._copy_state(stream)):
                undo = watch.undo  # nothing changed, so that the action to undo is still the one before
            new = watch.record(stream, health, action, alarms, operator=operator).restart_signals()
            self.watches[stream] = replace(new, undo=undo, snapshots=kept)
        elif health.level is not watch.health.level:
            self.watches[stream] = watch.record(stream, health, action, alarms, operator=operator)
        else:
            kept = self._add_snapshot(stream, health.step) if action is Action.SNAPSHOT else watch.snapshots
            self.watches[stream] = replace(watch, health=health, snapshots=kept)

    def _add_snapshot(self, stream: int, step: int) -> tuple[Snapshot, ...]:
        kept, rules = self.watches[stream].snapshots, self.settings
        if rules.mode != "on" or not rules.signals or not rules.snapshots:
            return kept
        return add_snapshot(kept, Snapshot(step, self._copy_state(stream)), rules.snapshots, 1e6 * rules.snapshot_mb)

    def _set_level(self, stream: int, level: Level) -> None:
        """Put a stream on a level, for an operator."""
        with self._session():
            watch = self.watches[self._check_stream(stream)]
            if watch.health.level is not level:
                self.watches[stream] = watch.record(stream, enter(watch.health, level), operator=True)

    def _copy_state(self, stream: int) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self.method.state_dict(stream)["tensors"]
        return tensors

    def _set_state(self, stream: int, tensors: Mapping[str, Tensor]) -> None:
        self.method.load_state_dict({**self.method._identify(), "tensors": tensors}, stream)

    def _begin_watch(self) -> StreamWatch:
        return StreamWatch(Tally.begin(self.classifier.classes))

    def _count_room(self, values: int) -> int:
        """Return the number of canaries of this many values that a stream may keep."""
        return count_room(self.settings.canaries, self.settings.canary_mb, self.streams, values)

    def _check_stream(self, stream: int) -> int:
        """Check the number of a single stream."""
        return int(self.method._ids([stream])[0])

    @contextmanager
    def _session(self) -> Iterator[None]:
        """Open a session of the method; if it has followed its classifier, the watches follow too."""
        with self.method._session():
            if self._placement != self.method._placement:
                self.watches = [self._move(watch) for watch in self.watches]
                self._placement = self.method._placement
            yield

    def _move(self, watch: StreamWatch) -> StreamWatch:
        """Return a watch for where the classifier is now, with canaries in the form that ``_check`` gives images."""
        clip, moved = self.classifier, watch.move(self.method._convert_state)
        if watch.canaries.images is None:
            return moved
        images = self.method._embed(watch.canaries.images.to(clip.device, clip.dtype)).to(KEPT)
        kept = keep_first(replace(watch.canaries, images=images), self._count_room(images[0].numel()))
        return replace(moved, canaries=kept)


@dataclass(frozen=True)
class StreamPart:
    """One stream in one batch: the places of its images, those that are compared, and its watch before the step."""

    stream: int
    places: list[int]
    compared: list[int]
    watch: StreamWatch


def split_batch(batch: Streams, watches: Sequence[StreamWatch], every: int, every_young: int) -> list[StreamPart]:
    """Return the part of each stream; one image in ``every`` of a calm stream is compared (0: none of any stream).

    Of the first 512 images of a stream it is one in ``every_young``. The choice depends only on the number of an image
    in its stream and on the level of the stream.
    """
    places: list[list[int]] = [[] for _ in range(batch.count)]
    for place, k in enumerate(batch.index.tolist()):
        places[k].append(place)
    parts = []
    for stream, own in zip(batch.active.tolist(), places, strict=True):
        watch, compared = watches[stream], []
        level = watch.health.level
        if every and level is not Level.QUARANTINED:
            calm = level in (Level.OK, Level.PAUSED)
            numbered = enumerate(own, watch.images)
            compared = [at for n, at in numbered if not calm or n % (every_young if n < YOUNG else every) == 0]
        parts.append(StreamPart(stream, own, compared, watch))
    return parts


def describe_batch(
    parts: Sequence[StreamPart],
    watches: Sequence[StreamWatch],
    events: Iterable[HealthEvent],
    frozen: Mapping[int, Tensor],
) -> dict[str, Any]:
    """Return the info of a batch about the watch, in plain Python values; ``frozen`` has the frozen model's logits."""
    now = {part.stream: watches[part.stream] for part in parts}
    return {
        "health": {stream: str(watch.health.level) for stream, watch in now.items()},
        "signals": {stream: dict(vars(watch.signals)) for stream, watch in now.items()},
        "events": [json.loads(json.dumps(dataclasses.asdict(event))) for event in events],
        "compared": {
            part.stream: [(part.places.index(place), int(frozen[place].argmax())) for place in part.compared]
            for part in parts
        },
    }
