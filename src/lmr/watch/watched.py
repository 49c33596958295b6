"""Watched: a method that is watched. It is itself a method: it steps, predicts, saves and loads.

Data flows one way: images are compared with the frozen model, signals follow from the comparison, the ladder from the
signals, and what the ladder decides is done to the state of the stream. Each stream is judged alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmr.core.batch import FrozenAnswer
from lmr.core.classifier import leave_autocast, leave_inference_mode
from lmr.core.errors import LmrError
from lmr.core.functional.losses import entropy
from lmr.core.method import Mix, Prediction, Streams
from lmr.core.traits import Passes
from lmr.watch.canaries import Canaries, begin_suspicion, collect, is_due, note_check
from lmr.watch.ladder import Action, Ladder, Rung, advance, enter
from lmr.watch.signals import Tally, add_images, find_alarms
from lmr.watch.snapshots import Snapshot, add_snapshot, find_snapshot, is_same
from lmr.watch.stream_look import StreamLook, describe_batch, look_at_streams
from lmr.watch.stream_watch import EVENTS, HealthEvent, StreamWatch, Undo, measure_watch
from lmr.watch.watch_keeper import WatchKeeper


class Watched(WatchKeeper):
    """A method and the watch of its streams; see ``lmr.watch``. ``method`` is the method itself.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> watched = lmr.watch(lmr.create("lmr", clip, streams=2))
        >>> watched.pause(1)
        >>> answer = watched.step(torch.randn(4, 3, 32, 32), streams=[0, 1, 1, 0])
        >>> [str(rung) for rung in watched.health], watched.signals(0).compared
        (['ok', 'paused'], 1)
    """

    def count_passes(self, learning: float = 1.0) -> Passes | None:
        """As the method, with the comparison of one image in ``every``; the canaries are asked too seldom to count."""
        passes = self.method.count_passes(learning)
        if passes is None or not self.settings.signals:
            return passes
        share = 1 / self._every
        return replace(passes, forwards=passes.forwards + share, whole=passes.whole + share)

    def settle(self, stream: int) -> FrozenAnswer:
        """As the method; a quarantined stream answers as zero-shot."""
        if self.health[stream] is Rung.QUARANTINED:
            return FrozenAnswer(self.classifier.prototypes.clone())
        return self.method.settle(stream)

    def __repr__(self) -> str:
        return f"{self.method!r}, watched"

    # The interface of a method.

    def step(self, images: Tensor, streams: Streams = None) -> Prediction:
        """Adapt on this batch and answer it; streams that rest are answered without adapting.

        ``info["health"]`` is the rung of each stream of the batch, ``info["signals"]`` its signals, ``info["events"]``
        what changed, ``info["compared"]`` the images of each stream that were compared and the frozen model's labels.
        """
        with self._hold(), leave_inference_mode(), leave_autocast(self.classifier.device):
            checked, mix = self._check(images, streams)
            shown = self._choose_first(checked)
            looks = look_at_streams(mix, self.watches, self._every if self.settings.signals else 0)
            plain = self._ask_frozen(shown, looks)
            asked = {look.stream: self._ask_canaries(look) for look in looks}
            answer = self._answer_all(checked, mix, looks, plain)  # the last that can fail, and the first that changes
            finite = answer.logits.isfinite().all(1).tolist()
            events = []
            for look in looks:
                new = self._judge(look, shown, answer, plain, finite, asked[look.stream])
                self.watches[look.stream] = new
                events += self._climb(look.stream, len(look.compared))
            return replace(answer, info=answer.info | describe_batch(looks, self.watches, events, plain))

    def predict(self, images: Tensor, streams: Streams = None) -> Prediction:
        """Answer with the present state, a quarantined stream as zero-shot, and change nothing."""
        with self._hold(), leave_inference_mode(), leave_autocast(self.classifier.device), torch.no_grad():
            checked, mix = self._check(images, streams)
            outside = torch.tensor([rung is Rung.QUARANTINED for rung in self.health], device=checked.device)
            frozen = outside[mix.active[mix.index]]
            if not bool(frozen.any()):
                return self.method.predict(images, streams)
            logits = self._zero_shot(self._choose_first(checked))
            if not bool(frozen.all()):
                ids = mix.active[mix.index]
                logits[~frozen] = self.method.predict(checked[~frozen], ids[~frozen]).logits
            return Prediction(logits)

    def reset(self, streams: Streams = None) -> None:
        """Return all streams, or the named ones, to their start: an action of an operator, which ``undo`` takes back.

        A paused stream stays paused, any other adapts again. The signals start anew; the canaries and the events stay.
        """
        rows = self._rows(streams).tolist()
        with self._hold():
            for stream in rows:
                watch, before = self.watches[stream], self._take(stream)
                rung = Rung.PAUSED if watch.ladder.rung is Rung.PAUSED else Rung.OK
                ladder = Ladder(rung, watch.ladder.step, since=watch.ladder.step)
                self._carry_out(stream, ladder, Action.RESET, (), operator=True)
                if not watch.ladder.step and not watch.events and is_same(before, self._take(stream)):
                    self.watches[stream] = watch  # it was at its start already

    def forget(self, streams: Streams = None) -> None:
        """Make all streams, or the named ones, new: nothing is left of what they learnt and of what the watch saw."""
        rows = self._rows(streams).tolist()
        with self._hold():
            self.method.reset(rows)
            for stream in rows:
                self.watches[stream] = self._begin_watch()

    # What an operator may do.

    def rollback(self, stream: int = 0) -> None:
        """Return a stream to its newest snapshot, one that is there already to the one before.

        It answers without adapting for a while; a paused stream stays paused.
        """
        with self._hold():
            watch = self.watches[self._one(stream)]
            there = bool(watch.snapshots) and is_same(self._take(stream), watch.snapshots[-1].tensors)
            older = watch.snapshots[:-1] if there else watch.snapshots
            if not older:
                raise LmrError(f"There is no {'older ' * there}snapshot of stream {stream}; reset it instead.")
            if watch.ladder.rung is Rung.PAUSED:
                ladder = enter(watch.ladder, Rung.PAUSED)
            else:
                ladder = enter(watch.ladder, Rung.ROLLED_BACK, self.settings.thresholds.rest)
            self._carry_out(stream, ladder, Action.ROLL_BACK, (), last=older[-1].step, operator=True)

    def pause(self, stream: int = 0) -> None:
        """Answer a stream with its present state, without adapting, until it is resumed."""
        self._move(stream, Rung.PAUSED)

    def resume(self, stream: int = 0) -> None:
        """Let a stream adapt again, under observation: one that rests, is paused or quarantined."""
        with self._hold():
            if self.watches[self._one(stream)].ladder.rung.adapts:
                raise LmrError(f"Stream {stream} adapts already.")
            self._move(stream, Rung.WATCH)

    def undo(self, stream: int = 0) -> None:
        """Undo the last rollback, reset or quarantine of a stream: state and snapshots have the bytes they had before.

        The rung is the one before, too, but a paused stream stays paused. The signals start anew, so that the same
        alarm needs new evidence. What is replaced can be brought back by another ``undo``.
        """
        with self._hold():
            watch = self.watches[self._one(stream)]
            if watch.undo is None:
                raise LmrError(f"There is nothing to undo in stream {stream}.")
            ladder = replace(watch.undo.ladder, step=watch.ladder.step, quiet=0, seen=0)
            if watch.ladder.rung is Rung.PAUSED:
                ladder = enter(ladder, Rung.PAUSED)
            replaced = Undo(watch.ladder, self._take(stream), watch.snapshots)
            self._put(stream, watch.undo.tensors)
            self._record(stream, ladder, Action.NONE, (), operator=True)
            fresh = self._start_signals(self.watches[stream])
            self.watches[stream] = replace(fresh, undo=replaced, snapshots=watch.undo.snapshots)

    # The comparison.

    @property
    def _every(self) -> int:
        """One image in so many is compared while nothing is suspected."""
        return self.pace.every if self.settings.every is None else self.settings.every

    def _ask_frozen(self, images: Tensor, looks: list[StreamLook]) -> dict[int, Tensor]:
        """The frozen model's logits [C] of the images that are compared or answered by it, by their places."""
        places = [
            place
            for look in looks
            for place in (look.places if look.watch.ladder.rung is Rung.QUARANTINED else look.compared)
        ]
        return dict(zip(places, self._zero_shot(images[places]), strict=True)) if places else {}

    @torch.no_grad()
    def _zero_shot(self, images: Tensor) -> Tensor:
        clip = self.classifier
        return clip.logits(clip.cosines(clip.features(images)))

    def _ask_canaries(self, look: StreamLook) -> Canaries:
        """The canaries of a stream, after a check if one is due."""
        kept = look.watch.canaries
        rung = look.watch.ladder.rung
        suspected = rung not in (Rung.OK, Rung.PAUSED, Rung.QUARANTINED)
        confirm = self.settings.thresholds.confirm
        if kept.images is None or not is_due(kept, suspected, len(look.places), confirm, self.pace.spacing):
            return kept
        ids = None if self.streams == 1 else [look.stream] * len(kept.images)
        images = kept.images.to(self.classifier.dtype)
        if self._holds_views(alone := images.unsqueeze(1)):
            images = alone  # one view of each: the method may not be able to make others, or makes very many
        return note_check(kept, self.method.predict(images, ids).labels)

    def _holds_views(self, images: Tensor) -> bool:
        return self.takes_views and self.classifier.holds_views(images)

    def _choose_first(self, images: Tensor) -> Tensor:
        """The images themselves: of given views the first, which every method with views takes for the image."""
        return images[:, 0] if self._holds_views(images) else images

    def _answer_all(self, images: Tensor, mix: Mix, looks: list[StreamLook], plain: dict[int, Tensor]) -> Prediction:
        """Each stream is answered as its rung says: it adapts, it answers with its state, or as zero-shot."""
        rungs = {look.stream: look.watch.ladder.rung for look in looks}
        if all(rung.adapts for rung in rungs.values()):
            return self.method.step(images, mix.active[mix.index])
        logits = images.new_empty(len(images), self.classifier.classes, dtype=self.classifier.prototypes.dtype)
        groups: dict[str, list[int]] = {"frozen": [], "rest": [], "adapt": []}
        for look in looks:
            rung = rungs[look.stream]
            key = "frozen" if rung is Rung.QUARANTINED else "adapt" if rung.adapts else "rest"
            groups[key] += look.places
        ids, info = mix.active[mix.index], {}
        for place in groups["frozen"]:
            logits[place] = plain[place]
        if rest := groups["rest"]:
            logits[rest] = self.method.predict(images[rest], ids[rest]).logits
        if adapt := sorted(groups["adapt"]):
            answer = self.method.step(images[adapt], ids[adapt])
            logits[adapt], info = answer.logits, answer.info
        return Prediction(logits, info)

    def _judge(
        self,
        look: StreamLook,
        images: Tensor,
        answer: Prediction,
        plain: dict[int, Tensor],
        finite: list[bool],
        canaries: Canaries,
    ) -> StreamWatch:
        """The watch of a stream with what this step has shown."""
        old, count = look.watch, len(look.places)
        info = answer.info if self.streams == 1 else answer.info.get("streams", {}).get(look.stream, {})
        sound = info.get("finite", True) and all(finite[place] for place in look.places)
        sure = [place for place in look.compared if finite[place] and bool(plain[place].isfinite().all())]
        tally = old.tally
        canaries = replace(canaries, steps=canaries.steps + 1, passed=canaries.passed + count)
        if sure:
            frozen = torch.stack([plain[place] for place in sure])
            both = [answer.logits[sure], frozen]
            labels = torch.stack([logits.argmax(1) for logits in both]).cpu()
            entropies = torch.stack([entropy(logits) for logits in both]).double().cpu()
            tally = add_images(tally, labels, entropies, self.settings.thresholds.memory)
            if old.ladder.rung is Rung.OK:
                canaries = collect(canaries, images[sure], frozen, self._count_room(images[0].numel()))
        return replace(
            old,
            tally=tally,
            canaries=canaries,
            images=old.images + count,
            not_finite=0 if sound else old.not_finite + 1,
            drift=info.get("drift", old.drift),
        )

    # The ladder.

    def _climb(self, stream: int, compared: int) -> list[HealthEvent]:
        """Move a stream along the ladder by one step and do what that asks for; gives the events."""
        watch, rules = self.watches[stream], self.settings.thresholds
        alarms: tuple[str, ...] = ()
        if self.settings.signals:
            alarms = find_alarms(measure_watch(watch), rules, self.classifier.classes, len(watch.canaries.labels))
        last = watch.ladder.since - rules.quiet
        snapshot = find_snapshot(watch.snapshots, last) is not None
        ladder, action = advance(watch.ladder, alarms, compared, snapshot, rules, self.settings.mode == "on")
        if action is Action.SNAPSHOT:
            self.watches[stream] = replace(watch, ladder=ladder)
            self._take_snapshot(stream)
        else:
            self._carry_out(stream, ladder, action, alarms, last)
        period, may_act = self.settings.reset_every, self.settings.mode == "on" and ladder.rung is not Rung.PAUSED
        if period and may_act and ladder.step % period == 0:
            self.method.reset(stream)
            fresh = self._start_signals(self.watches[stream])
            self.watches[stream] = replace(fresh, ladder=replace(fresh.ladder, born=ladder.step), snapshots=())
        return [event for event in self.watches[stream].events if event.step == ladder.step and not event.operator]

    def _carry_out(
        self,
        stream: int,
        ladder: Ladder,
        action: Action,
        alarms: tuple[str, ...],
        last: int = 0,
        *,
        operator: bool = False,
    ) -> None:
        """Give a stream its new place on the ladder, and its state what the action says."""
        watch = self.watches[stream]
        if action in (Action.ROLL_BACK, Action.RESET):
            before = self._take(stream)
            kept: tuple[Snapshot, ...] = ()
            if action is Action.ROLL_BACK:
                chosen = find_snapshot(watch.snapshots, last)
                assert chosen is not None
                self._put(stream, chosen.tensors)
                kept = tuple(one for one in watch.snapshots if one.step <= chosen.step)
            else:
                self.method.reset(stream)
                ladder = replace(ladder, born=ladder.step)
            self._record(stream, ladder, action, alarms, operator=operator)
            undo = Undo(watch.ladder, before, watch.snapshots)
            if watch.undo is not None and is_same(before, self._take(stream)):
                undo = watch.undo  # nothing changed, so what is worth undoing is still the action before
            fresh = self._start_signals(self.watches[stream])
            self.watches[stream] = replace(fresh, undo=undo, snapshots=kept)
        elif ladder.rung is not watch.ladder.rung:
            self._record(stream, ladder, action, alarms, operator=operator)
        else:
            self.watches[stream] = replace(watch, ladder=ladder)

    def _record(
        self, stream: int, ladder: Ladder, action: Action, alarms: tuple[str, ...], *, operator: bool = False
    ) -> None:
        """Set the ladder of a stream and note the event."""
        watch = self.watches[stream]
        event = HealthEvent(
            stream, ladder.step, watch.ladder.rung, ladder.rung, action, alarms, measure_watch(watch), operator
        )
        suspected = ladder.rung is Rung.WATCH and not watch.ladder.rung.rests  # a rest has begun a history already
        canaries = begin_suspicion(watch.canaries) if suspected else watch.canaries
        events, counts, first = (*watch.events, event)[-EVENTS:], watch.counts, watch.first
        if not operator:
            counts = {**counts, str(event.after): counts.get(str(event.after), 0) + 1}
            first = event.step if first is None else first
        self.watches[stream] = replace(
            watch, ladder=ladder, canaries=canaries, events=events, counts=counts, first=first
        )

    def _move(self, stream: int, rung: Rung) -> None:
        """Put a stream on a rung, for an operator."""
        with self._hold():
            watch = self.watches[self._one(stream)]
            if watch.ladder.rung is not rung:
                self._record(stream, enter(watch.ladder, rung), Action.NONE, (), operator=True)

    def _start_signals(self, watch: StreamWatch) -> StreamWatch:
        """Forget what was measured of another state; the canaries themselves stay."""
        canaries = replace(watch.canaries, history=(), steps=0, passed=0, earlier=None)
        tally = Tally.begin(self.classifier.classes)
        return replace(watch, tally=tally, canaries=canaries, not_finite=0, drift=None)

    def _take_snapshot(self, stream: int) -> None:
        if self.settings.mode != "on" or not self.settings.signals or not self.settings.snapshots:
            return
        watch = self.watches[stream]
        new = Snapshot(watch.ladder.step, self._take(stream))
        kept = add_snapshot(watch.snapshots, new, self.settings.snapshots, 1e6 * self.settings.snapshot_mb)
        self.watches[stream] = replace(watch, snapshots=kept)
