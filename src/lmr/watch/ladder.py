"""The ladder of health: a pure state machine. A state, whether there is an alarm, and the rules give the next state."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from lmr.watch.signals import NOT_FINITE
from lmr.watch.watch_settings import Thresholds


class Rung(enum.StrEnum):
    """The health of a stream."""

    OK = "ok"
    WATCH = "watch"  # suspected: every image is compared
    ALARM = "alarm"  # confirmed, in a watch that only reports
    ROLLED_BACK = "rolled back"  # answers from a snapshot, without adapting, for a while
    RESET = "reset"  # answers from the start, without adapting, for a while
    QUARANTINED = "quarantined"  # answers as zero-shot until an operator resumes it
    PAUSED = "paused"  # by an operator: answers with the present state until resumed

    @property
    def adapts(self) -> bool:
        """Whether a stream on this rung learns."""
        return self in (Rung.OK, Rung.WATCH, Rung.ALARM)

    @property
    def rests(self) -> bool:
        """Whether a stream on this rung waits to learn again."""
        return self in (Rung.ROLLED_BACK, Rung.RESET)


class Action(enum.StrEnum):
    """What is to be done with the state of a stream."""

    NONE = "none"
    SNAPSHOT = "snapshot"
    ROLL_BACK = "roll back"
    RESET = "reset"


@dataclass(frozen=True)
class Ladder:
    """Where a stream stands."""

    rung: Rung = Rung.OK
    step: int = 0  # steps so far
    since: int = 0  # the step at which the present suspicion began
    quiet: int = 0  # steps in a row without an alarm
    seen: int = 0  # images compared on this rung
    rest: int = 0  # steps left without adapting
    rollbacks: tuple[int, ...] = ()  # the steps of rollbacks and resets in the window
    born: int = 0  # the step at which the state was at its start


def advance(
    now: Ladder, alarms: tuple[str, ...], compared: int, snapshot: bool, rules: Thresholds, act: bool = True
) -> tuple[Ladder, Action]:
    """One step: ``alarms`` of this step, images ``compared`` in it, and whether there is a ``snapshot`` to return to.

    With ``act=False`` a confirmed alarm is a rung of its own and no action follows; a stream that rests, from a time
    when the watch acted, rests on, as that rung adapts.
    """
    step = now.step + 1
    recent = tuple(past for past in now.rollbacks if step - past < rules.window)
    new = replace(now, step=step, quiet=0 if alarms else now.quiet + 1, seen=now.seen + compared, rollbacks=recent)
    if new.rung in (Rung.QUARANTINED, Rung.PAUSED):
        return new, Action.NONE
    if new.rung is Rung.OK:
        if alarms:
            return enter(new, Rung.WATCH), Action.NONE
        return new, Action.SNAPSHOT if new.quiet % rules.quiet == 0 else Action.NONE
    if alarms and (act or not new.rung.rests) and (new.seen >= rules.confirm or NOT_FINITE in alarms):
        return _respond(new, snapshot, rules) if act else (_stay_alarmed(new), Action.NONE)
    if new.rung.rests:
        new = replace(new, rest=new.rest - 1)
        return (new if new.rest else enter(new, Rung.WATCH)), Action.NONE
    return (enter(new, Rung.OK) if new.quiet >= rules.quiet else new), Action.NONE


def enter(now: Ladder, rung: Rung, rest: int = 0) -> Ladder:
    """The ladder at the beginning of a rung."""
    since = now.step if rung is Rung.WATCH else now.since
    return replace(now, rung=rung, since=since, quiet=0, seen=0, rest=rest)


def _stay_alarmed(now: Ladder) -> Ladder:
    return now if now.rung is Rung.ALARM else enter(now, Rung.ALARM)


def _respond(now: Ladder, snapshot: bool, rules: Thresholds) -> tuple[Ladder, Action]:
    """Roll back; the last rollback that the window allows is a reset, and one more a quarantine.

    A stream that rests on a snapshot is reset: the same snapshot would not help it.
    """
    past = len(now.rollbacks)
    if past >= rules.rollbacks:
        return enter(now, Rung.QUARANTINED), Action.RESET
    fit = snapshot and not now.rung.rests and past + 1 < rules.rollbacks
    now = replace(now, rollbacks=(*now.rollbacks, now.step))
    if fit:
        return enter(now, Rung.ROLLED_BACK, rules.rest), Action.ROLL_BACK
    return enter(now, Rung.RESET, rules.rest), Action.RESET
