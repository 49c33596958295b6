"""Steps and operators' actions in any order: a stream keeps a valid health, and nothing happens without an event."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

import lmr
import small_world
from lmr.watch.health import Level
from lmr.watch.settings import Mode, Thresholds, WatchSettings

CALM = WatchSettings(
    every=2,
    snapshots=3,
    thresholds=Thresholds(concentration=0, entropy=0, drift=1e9, quiet=2, rest=2, window=12),
)
LOUD = dataclasses.replace(
    CALM,
    thresholds=dataclasses.replace(CALM.thresholds, entropy=1e6, spread=1e6, entropy_ratio=0.0, least=1, confirm=1),
)
CLIP = small_world.make_classifier()
State = dict[str, Tensor]


class WatchMachine(RuleBasedStateMachine):
    """A small method, watched, with one stream that is stepped and operated on beside one that nobody touches."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, method = (lmr.create("tent(lr=0.01)", CLIP, streams=2) for _ in range(2))
        self.watched = lmr.Watched(method, CALM)
        self.untouched = self.watched.state_dict(0)
        self.start = self.take()
        self.level = Level.OK
        self.changes = 0
        self.batch = 0

    def take(self) -> State:
        state: State = self.watched.method.state_dict(1)["tensors"]
        return state

    @property
    def now(self) -> Level:
        return self.watched.health[1]

    def note(self, level: Level, *, happened: int) -> None:
        """Check the events of a call that was to record so many."""
        new = [event for event in self.watched.events if event.stream == 1][self.changes :]
        assert len(new) == happened
        for event in new:
            assert event.before is level
            level = event.after
        assert level is self.now
        self.changes += happened
        self.level = self.now

    @initialize(times=st.integers(0, 6))
    def begin(self, times: int) -> None:
        self.step_calmly(times, 2)

    @rule(times=st.integers(1, 4), count=st.integers(1, 4))
    def step_calmly(self, times: int, count: int) -> None:
        for _ in range(times):
            self.step(CALM, count, "on")

    @rule(times=st.integers(1, 4), count=st.integers(1, 4))
    def step_in_trouble(self, times: int, count: int) -> None:
        for _ in range(times):
            self.step(LOUD, count, "on")

    @rule(times=st.integers(1, 3), loud=st.booleans())
    def step_under_report(self, times: int, loud: bool) -> None:
        for _ in range(times):
            self.step(LOUD if loud else CALM, 2, "report")

    def step(self, rules: WatchSettings, count: int, mode: Mode) -> None:
        """One step, which is what it is said to be."""
        self.watched.settings = dataclasses.replace(rules, mode=mode)
        images, level, before = small_world.make_images(self.batch % 7)[:count], self.now, self.take()
        adapted, before_all = level.adapts, self.watched.method.state_dict()
        plain = self.watched.predict(images, [1] * count).logits
        answer = self.watched.step(images, [1] * count)
        self.batch += 1
        events = answer.info["events"]
        assert len(events) == 1 if self.now is not level else len(events) <= 1
        acted = bool(events) and events[0]["action"] != "none"
        if not adapted:
            assert torch.equal(answer.logits, plain)
            assert acted or same(before, self.take())
        if level is Level.PAUSED:
            assert not events
        if mode == "report":
            assert not acted
            assert not level.rests or self.now in (level, Level.SUSPECTED)
        if adapted:  # the state is that of the method alone, unless the watch acted
            self.plain.load_state_dict(before_all)
            self.plain.step(images, [1] * count)
            before = self.plain.state_dict(1)["tensors"]
            assert acted or same(before, self.take())
        self.note(level, happened=len(events))

    @rule()
    def pause(self) -> None:
        level, before = self.now, self.take()
        self.watched.pause(1)
        assert same(before, self.take())
        self.note(level, happened=int(level is not Level.PAUSED))
        assert self.now is Level.PAUSED

    @rule()
    def resume(self) -> None:
        level, before = self.now, self.take()
        if level.adapts:
            with pytest.raises(lmr.LmrError, match="adapts already"):
                self.watched.resume(1)
            return
        failed = level.rests or bool(self.watched.watches[1].health.rollbacks)
        self.watched.resume(1)
        assert same(before, self.take())
        self.note(level, happened=1)
        assert self.now is (Level.SUSPECTED if failed else Level.OK)

    @rule(paused=st.booleans())
    def roll_back(self, paused: bool) -> None:
        if paused:
            self.pause()
        level, before, kept = self.now, self.take(), self.watched.watches[1].snapshots
        older = kept[:-1] if kept and same(before, kept[-1].tensors) else kept
        if not older:
            with pytest.raises(lmr.LmrError, match="snapshot"):
                self.watched.rollback(1)
            return
        self.watched.rollback(1)
        assert same(older[-1].tensors, self.take())
        self.note(level, happened=1)
        assert self.now is (Level.PAUSED if level is Level.PAUSED else Level.ROLLED_BACK)

    @rule()
    def reset(self) -> None:
        level = self.now
        self.watched.reset(1)
        assert same(self.start, self.take())
        self.note(level, happened=1)
        assert self.now is (Level.PAUSED if level is Level.PAUSED else Level.OK)

    @rule()
    def save_and_load(self) -> None:
        content = self.watched.dump()
        self.watched.forget()
        self.watched.restore(content)
        assert self.watched.dump() == content

    @invariant()
    def keeps_a_valid_health(self) -> None:
        watch = self.watched.watches[1]
        health = watch.health
        assert self.now is self.level  # the level changes with events alone
        assert health.step == self.batch
        assert (health.rest > 0) == health.level.rests
        assert len(health.rollbacks) <= CALM.thresholds.rollbacks
        steps = [one.step for one in watch.snapshots]
        assert steps == sorted(set(steps))
        assert len(steps) <= CALM.snapshots
        own = [event for event in watch.events if not event.operator]
        assert sum(watch.counts.values()) == len(own)
        assert watch.first == (own[0].step if own else None)

    def teardown(self) -> None:
        alone = self.watched.state_dict(0)
        assert alone["watch"] == self.untouched["watch"]
        assert same(alone["tensors"], self.untouched["tensors"])


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


TestWatchMachine = WatchMachine.TestCase
TestWatchMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
