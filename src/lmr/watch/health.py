"""The health of a stream: a pure state machine. The present state, the alarms of a step and the rules give the next."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from lmr.watch.settings import Thresholds
from lmr.watch.signals import Alarm


class Level(enum.StrEnum):
    """The health level of a stream."""

    OK = "ok"
    SUSPECTED = "suspected"  # every image is compared
    ALARM = "alarm"  # confirmed, in a watch that only reports
    ROLLED_BACK = "rolled back"  # rests: answers from a snapshot, without adapting, for a while
    RESET = "reset"  # rests: answers from the start, without adapting, for a while
    PAUSED = "paused"  # by an operator, or after too many rollbacks: answers without adapting until resumed

    @property
    def adapts(self) -> bool:
        """True if a stream at this level adapts."""
        return self in (Level.OK, Level.SUSPECTED, Level.ALARM)

    @property
    def rests(self) -> bool:
        """True if a stream at this level does not adapt now but will after a while."""
        return self in (Level.ROLLED_BACK, Level.RESET)


class Action(enum.StrEnum):
    """A change of the state of a stream."""

    NONE = "none"
    SNAPSHOT = "snapshot"
    ROLL_BACK = "roll back"
    RESET = "reset"


@dataclass(frozen=True)
class Health:
    """The health level of a stream, and the counts that decide when it changes."""

    level: Level = Level.OK
    step: int = 0  # steps so far
    since: int = 0  # the step at which the present suspicion began
    quiet: int = 0  # steps in a row without an alarm
    seen: int = 0  # images compared at this level
    rest: int = 0  # steps left without adapting
    rollbacks: tuple[int, ...] = ()  # the steps of rollbacks and resets in the window
    born: int = 0  # the step at which the state was at its start


def advance(
    now: Health, alarms: tuple[str, ...], compared: int, snapshot: bool, rules: Thresholds, act: bool = True
) -> tuple[Health, Action]:
    """Return the health after one more step, and what to do with the state of the stream.

    ``compared`` images were compared in the step; ``snapshot`` is true if there is one to return to. With ``act=False``
    a confirmed alarm is a level of its own and no action follows. A stream that rests since a time when the watch acted
    rests to the end then, because a stream at the level "alarm" adapts.
    """
    step = now.step + 1
    recent = tuple(past for past in now.rollbacks if step - past < rules.window)
    new = replace(now, step=step, quiet=0 if alarms else now.quiet + 1, seen=now.seen + compared, rollbacks=recent)
    if new.level is Level.PAUSED:
        return new, Action.NONE
    if new.level is Level.OK:
        if alarms:
            return enter(new, Level.SUSPECTED), Action.NONE
        return new, Action.SNAPSHOT if new.quiet % rules.quiet == 0 else Action.NONE
    if alarms and (act or not new.level.rests) and new.seen >= _count_confirming(alarms, rules):
        if act:
            return _respond(new, snapshot, rules)
        return (new if new.level is Level.ALARM else enter(new, Level.ALARM)), Action.NONE
    if new.level.rests:
        new = replace(new, rest=new.rest - 1)
        return (new if new.rest else enter(new, Level.SUSPECTED)), Action.NONE
    return (enter(new, Level.OK) if new.quiet >= rules.quiet else new), Action.NONE


def _count_confirming(alarms: tuple[str, ...], rules: Thresholds) -> int:
    """Return the images that must be compared under suspicion before these alarms are acted on."""
    if Alarm.NOT_FINITE in alarms:
        return 0
    return min(rules.confirm, rules.doubt_confirm) if Alarm.DOUBT in alarms else rules.confirm


def enter(now: Health, level: Level, rest: int = 0) -> Health:
    """Return the health of a stream that has just reached a level."""
    since = now.step if level is Level.SUSPECTED else now.since
    return replace(now, level=level, since=since, quiet=0, seen=0, rest=rest)


def _respond(now: Health, snapshot: bool, rules: Thresholds) -> tuple[Health, Action]:
    """Respond to a confirmed alarm: roll back, reset, or reset and pause.

    The last rollback that the window allows is a reset; one more resets the stream and pauses it, because adapting has
    failed too often. A stream that rests on a snapshot is reset, because the same snapshot would not help it.
    """
    past = len(now.rollbacks)
    if past >= rules.rollbacks:
        return enter(now, Level.PAUSED), Action.RESET
    roll_back = snapshot and not now.level.rests and past + 1 < rules.rollbacks
    now = replace(now, rollbacks=(*now.rollbacks, now.step))
    if roll_back:
        return enter(now, Level.ROLLED_BACK, rules.rest), Action.ROLL_BACK
    return enter(now, Level.RESET, rules.rest), Action.RESET
