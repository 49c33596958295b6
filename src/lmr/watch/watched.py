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
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot, leave_inference_mode
from lmr.core.errors import LmrError, WrongType
from lmr.core.functional.losses import entropy
from lmr.core.method import Method
from lmr.core.passes import Passes, count_passes
from lmr.core.prediction import Prediction, State
from lmr.core.runner import choose_first
from lmr.core.state import check_identity, identify
from lmr.core.streams import StreamIds, Streams
from lmr.core.wrapper import Wrapper, unwrap
from lmr.watch.health import Action, Health, Level, advance, enter
from lmr.watch.settings import WatchSettings
from lmr.watch.signals import Alarm, Signals, Tally, add_images, find_alarms, measure_sureness
from lmr.watch.stream_watch import HealthEvent, Snapshot, StreamWatch, add_snapshot, find_snapshot, is_same
from lmr.watch.watch_file import pack_all, unpack_all

MOST = 1 / 32  # of the cost of a step, for comparisons
EVERY = 16  # at most one image in 16 is compared: more would add little
YOUNG = 512  # images of a new stream of which more are compared: nothing is known of it yet
MORE = 4  # times as many of these


@dataclass(eq=False, repr=False)
class Watched(Wrapper):
    """A method with a watch, which notices without labels that a stream's adaptation goes wrong, and rolls it back.

    Its snapshots hold what the wrappers inside keep too; those around it are not rolled back. ``watches`` holds what is
    known about each stream, in values that never change: a new one takes the place of the old.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> watched = lmr.Watched(lmr.create("lmr", clip, streams=2), lmr.WatchSettings(every=8))
        >>> watched.pause(1)
        >>> answer = watched.step(torch.randn(4, 3, 32, 32), streams=[0, 1, 1, 0])
        >>> answer.info["health"], watched.signals(0).compared
        ({0: 'ok', 1: 'paused'}, 1)
    """

    prefix = "watch"

    settings: WatchSettings = field(default_factory=WatchSettings)

    def __post_init__(self) -> None:
        if self.settings is None:
            self.settings = WatchSettings()
        if not isinstance(self.settings, WatchSettings):
            raise WrongType(f"Expected lmr.WatchSettings(...) for the settings of a watch, got {self.settings!r}.")
        super().__post_init__()
        self.watches = [self._begin_watch() for _ in range(self.streams)]

    def __repr__(self) -> str:
        return f"{self.method!r}, watched"

    # The interface of a method.

    def step(self, images: Tensor, streams: StreamIds | Streams = None) -> Prediction:
        """Adapt on this batch and answer it; streams that are paused or rest do not adapt.

        ``info["health"]`` has the health level of each stream of the batch, ``info["signals"]`` its signals,
        ``info["events"]`` the changes of level, and ``info["compared"]`` the images of each stream that were compared,
        with the frozen model's labels.
        """
        with self.session():
            checked, batch = self.check(images, streams)
            first = choose_first(unwrap(self.method), checked)
            parts = split_batch(batch, self.watches, self.every, self.every_young)
            frozen = self._answer_frozen(first, parts)
            with self.transaction(batch.active):
                answer = self._answer(checked, batch, parts)
                finite = answer.logits.isfinite().all(1).tolist()
                events = []
                for part in parts:
                    self.watches[part.stream] = self._observe(part, answer, frozen, finite)
                    events += self._advance(part.stream, len(part.compared))
                return replace(answer, info=answer.info | describe_batch(parts, self.watches, events, frozen))

    def reset(self, streams: StreamIds = None) -> None:
        """Return all streams, or the named ones, to their start: an action of an operator.

        A paused stream stays paused, any other adapts again. The signals start anew; the events stay.
        """
        with self.session():
            for stream in self.find_rows(streams).tolist():
                now = self.watches[stream].health
                level = Level.PAUSED if now.level is Level.PAUSED else Level.OK
                self._apply(stream, Health(level, now.step, since=now.step), Action.RESET, operator=True)

    def forget(self, streams: StreamIds = None) -> None:
        """Make all streams, or the named ones, new: the state, the signals and the events are lost."""
        with self.session():
            rows = self.find_rows(streams).tolist()
            self.method.reset(rows)
            for stream in rows:
                self.watches[stream] = self._begin_watch()

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
        return (self.settings.every or self._interval) if self.settings.signals else 0

    @property
    def every_young(self) -> int:
        """The same for the first images of a stream: a quarter of ``every``, unless the settings give ``every``."""
        return self.every if self.settings.every else -(-self.every // MORE)

    @cached_property
    def _interval(self) -> int:
        """The interval of comparisons that the cost of a step allows, counted when it is first needed."""
        return max(EVERY, math.ceil(1 / (MOST * measure_step(unwrap(self.method)))))

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
        """Let a stream that rests or is paused adapt again, as a suspected one if the watch undid its adaptation."""
        with self.session():
            now = self.watches[self._check_stream(stream)].health
            if now.level.adapts:
                raise LmrError(f"Stream {stream} adapts already.")
            self._set_level(stream, Level.SUSPECTED if now.level.rests or now.rollbacks else Level.OK)

    def rollback(self, stream: int = 0) -> None:
        """Return a stream to its newest snapshot, or to the one before if its state is that one already.

        It answers without adapting for a while; a paused stream stays paused.
        """
        with self.session():
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

    # Saved with the state of the method.

    @property
    def state(self) -> State:  # type: ignore[override]  # a method has it as an attribute
        """The tensors of the method, and those of the watch."""
        return self.method.state | pack_all(self.watches)[1]

    def state_dict(self, streams: StreamIds = None) -> dict[str, Any]:
        """Return a copy of the state of all streams, or of the named ones, with their watches."""
        with self.session():
            rows = self.find_rows(streams)
            state = self.method.state_dict(rows)
            text, tensors = pack_all([self.watches[stream] for stream in rows.tolist()])
            copies = {key: value.clone() for key, value in tensors.items()}
            return state | {"watch": text, "tensors": state["tensors"] | copies}

    def load_state_dict(self, state: Mapping[str, Any], streams: StreamIds = None) -> None:
        """Load a state. The state of a method without a watch starts a new one. One that does not fit changes nothing.

        The settings of the watch are not part of a state: a stream may continue with others.
        """
        with self.session():
            rows = self.find_rows(streams).tolist()
            tensors = check_identity(state, self.spec, self.classifier)
            watches = [self._begin_watch() for _ in rows]
            if "watch" in state:
                watches = self._unpack(str(state["watch"]), tensors, rows)
            inner, _ = self._split(tensors)
            self.method.load_state_dict({**state, "tensors": inner}, rows)
            for stream, watch in zip(rows, watches, strict=True):
                self.watches[stream] = watch

    def with_classes(self, classifier: ZeroShot) -> Self:
        """Return the watched method for other classes of the same model, with the states of all its streams.

        Snapshots follow the class names as the state does. Health and events stay. The signals depend on all classes,
        and begin anew.
        """
        new = super().with_classes(classifier)
        with self.session():
            new.watches = self._carry_watches(new)
        return new

    def carry_all(self, new: Self) -> dict[str, Any]:
        """Return the state of all streams as one of ``new``, which has other classes."""
        state = super().carry_all(new)
        text, tensors = pack_all(self._carry_watches(new))
        return state | {"watch": text, "tensors": state["tensors"] | tensors}

    @contextmanager
    def transaction(self, rows: Tensor) -> Iterator[None]:
        """Give the streams ``rows`` their old state back, with their watches, if this context raises."""
        before = list(self.watches)
        with super().transaction(rows):
            try:
                yield
            except BaseException:
                self.watches = before
                raise

    def follow(self) -> None:
        """Move the snapshots to where the classifier is now."""
        self.watches = [watch.move(self.method.convert) for watch in self.watches]

    def _carry_watches(self, new: Self) -> list[StreamWatch]:
        """Return the watches of all streams for the classes of ``new``."""
        moved = (watch.move(lambda state: self.method.carry(state, new.method)) for watch in self.watches)  # type: ignore[arg-type]
        fresh = Tally.begin(new.classifier.classes)
        return [replace(watch.restart_signals(), tally=fresh) for watch in moved]

    def _unpack(self, text: str, tensors: Mapping[str, Tensor], rows: list[int]) -> list[StreamWatch]:
        """Return the watches in a state; raise an LmrError if they do not fit."""
        try:
            watches = unpack_all(text, tensors, rows, self.classifier.classes)
            return [watch.move(lambda kept: self.method.convert(self.method.check_rows(kept, 1))) for watch in watches]
        except ValueError as error:  # an LmrError is one
            raise LmrError(
                f"The watch in the state cannot be used ({error}); it is damaged or of another version of lmr."
            ) from error

    # A step.

    def _answer_frozen(self, images: Tensor, parts: Sequence[StreamPart]) -> dict[int, Tensor]:
        places = [place for part in parts for place in part.compared]
        with torch.no_grad():
            return dict(zip(places, self.classifier(images[places]), strict=True)) if places else {}

    def _answer(self, images: Tensor, batch: Streams, parts: Sequence[StreamPart]) -> Prediction:
        """Answer each stream as its level requires: it adapts, or is answered with its present state."""
        ids = batch.repeat(batch.active)
        if all(part.watch.health.level.adapts for part in parts):
            return self.method.step(images, ids)
        adapting = sorted(place for part in parts if part.watch.health.level.adapts for place in part.places)
        resting = sorted({*range(len(images))} - {*adapting})
        rested = self.method.predict(images[resting], ids[resting])
        if not adapting:
            return rested
        answer = self.method.step(images[adapting], ids[adapting])
        order = torch.tensor(adapting + resting).argsort().to(ids.device)
        return answer.join(rested, order)

    def _observe(
        self, part: StreamPart, answer: Prediction, frozen: Mapping[int, Tensor], finite: list[bool]
    ) -> StreamWatch:
        old, count = part.watch, len(part.places)
        info = answer.info if self.streams == 1 else answer.info.get("streams", {}).get(part.stream, {})
        valid = info.get("finite", True) and all(finite[place] for place in part.places)
        usable = [place for place in part.compared if finite[place] and bool(frozen[place].isfinite().all())]
        tally, drift = old.tally, info.get("drift", old.drift)
        if usable:
            plain = torch.stack([frozen[place] for place in usable])
            both = [answer.logits[usable], plain]
            labels = torch.stack([logits.argmax(1) for logits in both]).cpu()
            entropies = torch.stack([entropy(logits) for logits in both]).double().cpu()
            sureness = measure_sureness(plain).cpu()
            tally = add_images(tally, labels, entropies, sureness, self.settings.thresholds.memory)
        return replace(
            old,
            tally=tally,
            images=old.images + count,
            not_finite=0 if valid else old.not_finite + 1,
            drift=drift if drift is not None and math.isfinite(drift) else None,
        )

    def _advance(self, stream: int, compared: int) -> list[HealthEvent]:
        """Advance the health of a stream by one step, act on it, and return the events of this step."""
        watch, rules, act = self.watches[stream], self.settings.thresholds, self.settings.mode == "on"
        alarms: tuple[Alarm, ...] = ()
        if self.settings.signals:
            alarms = find_alarms(watch.signals, rules, self.classifier.classes)
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
            kept: tuple[Snapshot, ...] = ()
            if action is Action.ROLL_BACK and snapshot is not None:
                self._set_state(stream, snapshot.tensors)
                kept = tuple(one for one in watch.snapshots if one.step <= snapshot.step)
            else:
                self.method.reset(stream)
                health = replace(health, born=health.step)
            new = watch.record(stream, health, action, alarms, operator=operator).restart_signals()
            self.watches[stream] = replace(new, snapshots=kept)
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
        with self.session():
            watch = self.watches[self._check_stream(stream)]
            if watch.health.level is not level:
                self.watches[stream] = watch.record(stream, enter(watch.health, level), operator=True)

    def _copy_state(self, stream: int) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self.method.state_dict(stream)["tensors"]
        return tensors

    def _set_state(self, stream: int, tensors: Mapping[str, Tensor]) -> None:
        self.method.load_state_dict({**identify(self.spec, self.classifier), "tensors": tensors}, stream)

    def _begin_watch(self) -> StreamWatch:
        return StreamWatch(Tally.begin(self.classifier.classes))

    def _check_stream(self, stream: int) -> int:
        return int(self.find_rows([stream])[0])


def measure_step(method: Method) -> float:
    """Return the cost of a step for each confident image, in forwards of the image tower; a lower bound.

    A backward counts as a forward. Prompts are left out, as their share depends on the batch. A method whose passes
    cannot be counted is assumed to need one forward.
    """
    with leave_inference_mode():
        passes = count_passes(method) or Passes(forwards=1)
    return passes.forwards + passes.backwards


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
        if every:
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
