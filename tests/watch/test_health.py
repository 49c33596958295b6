"""The health of a stream: any sequence of inputs keeps it valid, and each level is left as the rules say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmr.watch.health import Action, Health, Level, advance, enter
from lmr.watch.settings import Thresholds

RULES = Thresholds(confirm=4, quiet=3, rest=2, rollbacks=3, window=40)
ALARM = ("concentration",)
INPUTS = st.lists(
    st.tuples(st.sampled_from([(), ALARM, ("not finite",), ("drift", "entropy")]), st.integers(0, 9), st.booleans()),
    max_size=120,
)


def run(now: Health, inputs: list[tuple[tuple[str, ...], int, bool]], act: bool = True) -> list[tuple[Health, Action]]:
    path = []
    for alarms, compared, snapshot in inputs:
        now, action = advance(now, alarms, compared, snapshot, RULES, act)
        path.append((now, action))
    return path


@given(INPUTS, st.booleans())
def test_any_inputs_keep_the_health_valid(inputs: list[tuple[tuple[str, ...], int, bool]], act: bool) -> None:
    before = Health()
    for (now, action), (alarms, _, snapshot) in zip(run(before, inputs, act), inputs, strict=True):
        assert now.step == before.step + 1
        assert (now.rest > 0) == now.level.rests
        assert 0 <= now.rest <= RULES.rest
        assert len(now.rollbacks) <= RULES.rollbacks
        assert all(now.step - past < RULES.window for past in now.rollbacks)
        assert now.since <= now.step
        if before.level is Level.PAUSED:
            assert (now.level, action) == (Level.PAUSED, Action.NONE)
        if action is Action.ROLL_BACK:
            assert snapshot
            assert now.level is Level.ROLLED_BACK
            assert not before.level.rests
        if action is Action.RESET:
            assert now.level in (Level.RESET, Level.PAUSED)
        if action is Action.SNAPSHOT:
            assert before.level is now.level is Level.OK
        if now.level in (Level.ROLLED_BACK, Level.RESET, Level.PAUSED) and now.level is not before.level:
            assert alarms
            assert before.level is not Level.OK
            assert action in (Action.ROLL_BACK, Action.RESET)
        if not act:
            assert now.level in (Level.OK, Level.SUSPECTED, Level.ALARM)
            assert action in (Action.NONE, Action.SNAPSHOT)
        before = now


@given(INPUTS)
def test_quiet_steps_lead_back_to_ok_from_all_but_paused(inputs: list[tuple[tuple[str, ...], int, bool]]) -> None:
    path = run(Health(), inputs)
    now = path[-1][0] if path else Health()
    end = run(now, [((), 1, True)] * (RULES.rest + 2 * RULES.quiet + 1))[-1][0]
    assert end.level is (Level.PAUSED if now.level is Level.PAUSED else Level.OK)


def test_alarm_without_end_resets_and_pauses() -> None:
    path = run(Health(), [(ALARM, 4, True)] * 6)
    levels = [now.level for now, _ in path]
    assert levels == [Level.SUSPECTED, Level.ROLLED_BACK, Level.RESET, Level.RESET, Level.PAUSED, Level.PAUSED]
    actions = [action for _, action in path]
    assert actions == [Action.NONE, Action.ROLL_BACK, Action.RESET, Action.RESET, Action.RESET, Action.NONE]


def test_without_a_snapshot_a_stream_is_reset() -> None:
    assert run(Health(), [(ALARM, 4, False)] * 2)[-1][1] is Action.RESET


def test_suspicion_acts_after_enough_images_and_ends_after_quiet_steps() -> None:
    levels = [now.level for now, _ in run(Health(), [(ALARM, 1, True)] * 5)]
    assert levels == [Level.SUSPECTED] * 4 + [Level.ROLLED_BACK]
    levels = [now.level for now, _ in run(Health(), [(ALARM, 9, True)] + [((), 9, True)] * 3)]
    assert levels == [Level.SUSPECTED] * 3 + [Level.OK]


def test_answers_that_are_not_finite_need_no_compared_images() -> None:
    assert run(Health(), [(("not finite",), 0, True)] * 2)[-1][0].level is Level.ROLLED_BACK


def test_rest_ends_as_suspected() -> None:
    now = enter(Health(), Level.ROLLED_BACK, RULES.rest)
    assert [step.level for step, _ in run(now, [((), 1, True)] * 3)] == [
        Level.ROLLED_BACK,
        Level.SUSPECTED,
        Level.SUSPECTED,
    ]


def test_snapshots_are_taken_in_quiet_times() -> None:
    actions = [action for _, action in run(Health(), [((), 1, True)] * 7)]
    assert [k for k, action in enumerate(actions, 1) if action is Action.SNAPSHOT] == [3, 6]


def test_old_rollbacks_are_forgotten() -> None:
    now = Health(level=Level.SUSPECTED, step=100, rollbacks=(10, 20, 61))
    assert advance(now, (), 0, True, RULES)[0].rollbacks == ()
    assert advance(now, ALARM, 9, True, RULES)[1] is Action.ROLL_BACK


@pytest.mark.parametrize("level", [Level.ROLLED_BACK, Level.RESET])
def test_report_leaves_a_stream_that_rests_alone(level: Level) -> None:
    now = enter(Health(), level, RULES.rest)
    path = run(now, [(("not finite",), 9, True)] * 3, act=False)
    assert [step.level for step, _ in path] == [level, Level.SUSPECTED, Level.ALARM]
    assert {action for _, action in path} == {Action.NONE}


def test_report_has_a_level_for_confirmed_alarms() -> None:
    levels = [now.level for now, _ in run(Health(), [(ALARM, 4, True)] * 3 + [((), 4, True)] * 3, act=False)]
    assert levels == [Level.SUSPECTED, Level.ALARM, Level.ALARM, Level.ALARM, Level.ALARM, Level.OK]
