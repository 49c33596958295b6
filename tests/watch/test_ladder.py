"""The ladder: no sequence of inputs leads out of it, and each rung is left as the rules say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmr.watch.ladder import Action, Ladder, Rung, advance, enter
from lmr.watch.watch_settings import Thresholds

RULES = Thresholds(confirm=4, quiet=3, rest=2, rollbacks=3, window=40)
ALARM = ("concentration",)
INPUTS = st.lists(
    st.tuples(st.sampled_from([(), ALARM, ("not finite",), ("drift", "entropy")]), st.integers(0, 9), st.booleans()),
    max_size=120,
)


def climb(
    now: Ladder, inputs: list[tuple[tuple[str, ...], int, bool]], act: bool = True
) -> list[tuple[Ladder, Action]]:
    path = []
    for alarms, compared, snapshot in inputs:
        now, action = advance(now, alarms, compared, snapshot, RULES, act)
        path.append((now, action))
    return path


@given(INPUTS, st.booleans())
def test_no_inputs_lead_out_of_the_ladder(inputs: list[tuple[tuple[str, ...], int, bool]], act: bool) -> None:
    before = Ladder()
    for (now, action), (alarms, _, snapshot) in zip(climb(before, inputs, act), inputs, strict=True):
        assert now.step == before.step + 1
        assert (now.rest > 0) == now.rung.rests
        assert 0 <= now.rest <= RULES.rest
        assert len(now.rollbacks) <= RULES.rollbacks
        assert all(now.step - past < RULES.window for past in now.rollbacks)
        assert now.since <= now.step
        if before.rung is Rung.QUARANTINED:
            assert (now.rung, action) == (Rung.QUARANTINED, Action.NONE)
        if action is Action.ROLL_BACK:
            assert snapshot
            assert now.rung is Rung.ROLLED_BACK
            assert not before.rung.rests
        if action is Action.RESET:
            assert now.rung in (Rung.RESET, Rung.QUARANTINED)
        if action is Action.SNAPSHOT:
            assert before.rung is now.rung is Rung.OK
        if now.rung in (Rung.ROLLED_BACK, Rung.RESET, Rung.QUARANTINED) and now.rung is not before.rung:
            assert alarms
            assert before.rung is not Rung.OK
            assert action in (Action.ROLL_BACK, Action.RESET)
        if not act:
            assert now.rung in (Rung.OK, Rung.WATCH, Rung.ALARM)
            assert action in (Action.NONE, Action.SNAPSHOT)
        before = now


@given(INPUTS)
def test_quiet_steps_lead_back_to_ok_from_all_but_quarantine(inputs: list[tuple[tuple[str, ...], int, bool]]) -> None:
    path = climb(Ladder(), inputs)
    now = path[-1][0] if path else Ladder()
    end = climb(now, [((), 1, True)] * (RULES.rest + 2 * RULES.quiet + 1))[-1][0]
    assert end.rung is (Rung.QUARANTINED if now.rung is Rung.QUARANTINED else Rung.OK)


def test_alarm_without_end_goes_down_the_whole_ladder() -> None:
    path = climb(Ladder(), [(ALARM, 4, True)] * 6)
    rungs = [now.rung for now, _ in path]
    assert rungs == [Rung.WATCH, Rung.ROLLED_BACK, Rung.RESET, Rung.RESET, Rung.QUARANTINED, Rung.QUARANTINED]
    actions = [action for _, action in path]
    assert actions == [Action.NONE, Action.ROLL_BACK, Action.RESET, Action.RESET, Action.RESET, Action.NONE]


def test_without_a_snapshot_a_stream_is_reset() -> None:
    assert climb(Ladder(), [(ALARM, 4, False)] * 2)[-1][1] is Action.RESET


def test_suspicion_acts_after_enough_images_and_ends_after_quiet_steps() -> None:
    rungs = [now.rung for now, _ in climb(Ladder(), [(ALARM, 1, True)] * 5)]
    assert rungs == [Rung.WATCH] * 4 + [Rung.ROLLED_BACK]
    rungs = [now.rung for now, _ in climb(Ladder(), [(ALARM, 9, True)] + [((), 9, True)] * 3)]
    assert rungs == [Rung.WATCH] * 3 + [Rung.OK]


def test_answers_that_are_not_finite_need_no_compared_images() -> None:
    assert climb(Ladder(), [(("not finite",), 0, True)] * 2)[-1][0].rung is Rung.ROLLED_BACK


def test_rest_ends_under_observation() -> None:
    now = enter(Ladder(), Rung.ROLLED_BACK, RULES.rest)
    assert [step.rung for step, _ in climb(now, [((), 1, True)] * 3)] == [Rung.ROLLED_BACK, Rung.WATCH, Rung.WATCH]


def test_snapshots_are_taken_in_quiet_times() -> None:
    actions = [action for _, action in climb(Ladder(), [((), 1, True)] * 7)]
    assert [k for k, action in enumerate(actions, 1) if action is Action.SNAPSHOT] == [3, 6]


def test_old_rollbacks_are_forgotten() -> None:
    now = Ladder(rung=Rung.WATCH, step=100, rollbacks=(10, 20, 61))
    assert advance(now, (), 0, True, RULES)[0].rollbacks == ()
    assert advance(now, ALARM, 9, True, RULES)[1] is Action.ROLL_BACK


@pytest.mark.parametrize("rung", [Rung.ROLLED_BACK, Rung.RESET])
def test_report_leaves_a_stream_that_rests_alone(rung: Rung) -> None:
    now = enter(Ladder(), rung, RULES.rest)
    path = climb(now, [(("not finite",), 9, True)] * 3, act=False)
    assert [step.rung for step, _ in path] == [rung, Rung.WATCH, Rung.ALARM]
    assert {action for _, action in path} == {Action.NONE}


def test_report_has_a_rung_for_confirmed_alarms() -> None:
    rungs = [now.rung for now, _ in climb(Ladder(), [(ALARM, 4, True)] * 3 + [((), 4, True)] * 3, act=False)]
    assert rungs == [Rung.WATCH, Rung.ALARM, Rung.ALARM, Rung.ALARM, Rung.ALARM, Rung.OK]
