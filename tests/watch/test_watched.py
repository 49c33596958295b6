"""A watched method is a method: every registered one, alone and in mixed batches, through saves, rollbacks and undo."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import lmr
import small_world
from few_views import create
from lmr.core.card import Tower
from lmr.core.streams import Streams
from lmr.watch.health import Action, Health, Level
from lmr.watch.pace import YOUNG
from lmr.watch.settings import Thresholds, WatchSettings
from lmr.watch.signals import Tally
from lmr.watch.stream_watch import StreamWatch
from lmr.watch.watched import describe_batch, split_batch
from tiny_models import draw_batches, load_tiny

METHODS = lmr.list_methods()
# A watch knows no method: all of them are watched in calm and undone, and one of each base class goes through the rest.
KINDS = sorted({"lmr", "tda", *{lmr.find_method(name).__mro__[1]: name for name in METHODS}.values()})
MANY = [name for name in KINDS if not lmr.find_method(name).single_stream_reason]
ONE_TOWER = [name for name in KINDS if Tower.TEXT not in lmr.find_method(name).towers]  # prompts are float64 here
CALM = WatchSettings(
    every=3, thresholds=Thresholds(canary_agreement=0, canary_fall=9, drift=99, quiet=2, rest=2, doubt=99)
)
EAGER = dataclasses.replace(CALM.thresholds, entropy=1e6, spread=1e6, entropy_ratio=0.0, least=1, confirm=1)
LOUD = dataclasses.replace(CALM, thresholds=EAGER)  # every comparison is an alarm
ONLY_CANARIES = dataclasses.replace(CALM.thresholds, concentration=0, entropy=0, spread=99, least=1)


def make(spec: str, settings: WatchSettings = CALM, streams: int = 1, clip: lmr.ZeroShot | None = None) -> lmr.Watched:
    return lmr.Watched(create(spec, clip or small_world.make_classifier(), streams=streams), settings)


def make_few(batch: int) -> Tensor:
    """Four images, for tests of all methods."""
    return small_world.make_images(batch)[:4]


def make_sure() -> lmr.ZeroShot:
    """A classifier that is sure of most images, so that they become canaries."""
    clip = small_world.make_classifier()
    clip.logit_scale = 200.0
    return clip


def are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def step_through(method: lmr.Watched, batches: range) -> list[Tensor]:
    """Batches of a stream that is calm until batch 5 and alarmed from then on."""
    answers = []
    for batch in batches:
        method.settings = CALM if batch < 5 else LOUD
        answers.append(method.step(make_few(batch)).logits)
    return answers


# It is the method it watches.


@pytest.mark.parametrize("spec", METHODS)
def test_calm_stream_is_answered_as_without_a_watch(spec: str) -> None:
    watched, plain = make(spec), create(spec, small_world.make_classifier())
    for batch in range(6):
        images = make_few(batch)
        answer, expected = watched.step(images), plain.step(images)
        assert torch.equal(answer.logits, expected.logits)
        assert {key: answer.info[key] for key in expected.info} == pytest.approx(expected.info, nan_ok=True)
        assert answer.info["health"] == {0: "ok"}
        assert torch.equal(watched.predict(images).logits, plain.predict(images).logits)
    assert are_equal(watched.method.state, plain.state)
    for key in ("spec", "name", "card", "scores", "emits", "trainable", "margin_width", "streams", "grows"):
        assert getattr(watched, key) == getattr(plain, key), key
    assert watched.signals().compared == 8
    watched.reset()
    plain.reset()
    assert are_equal(watched.method.state, plain.state)
    watched.forget()
    assert are_equal(watched.state_dict(), make(spec).state_dict())
    watched.reset()  # a stream that is at its start already
    assert are_equal(watched.state_dict(), make(spec).state_dict())


def test_info_is_plain() -> None:
    watched = make("lmr", LOUD)
    for batch in range(3):
        info = watched.step(small_world.make_images(batch)).info
        assert json.loads(json.dumps(info))["health"] == {"0": info["health"][0]}
        assert type(info["health"][0]) is str
    assert [event["after"] for event in info["events"]] == ["reset"]
    assert [event.after for event in watched.events] == [Level.WATCH, Level.RESET, Level.RESET]
    assert watched.events[1].alarms == ("entropy",)
    assert watched.events[1].action is Action.RESET
    assert watched.events[1].signals.compared > 0


def test_suspected_stream_is_compared_whole() -> None:
    watched = make("lmr", dataclasses.replace(LOUD, thresholds=dataclasses.replace(EAGER, confirm=10**6)))
    for batch in range(3):
        watched.step(small_world.make_images(batch))
    assert watched.health == [Level.WATCH]
    assert watched.signals().compared == 3 + 8 + 8


# Trouble.


@pytest.mark.parametrize("spec", KINDS)
def test_stream_reaches_every_level_and_its_state_with_it(spec: str) -> None:
    watched, plain = make(spec), create(spec, small_world.make_classifier())
    states = []
    for batch in range(5):
        watched.step(make_few(batch))
        plain.step(make_few(batch))
        states.append(plain.state_dict()["tensors"])
    watched.settings = LOUD
    watched.step(make_few(5))
    assert watched.health == [Level.WATCH]
    watched.step(make_few(6))
    assert watched.health == [Level.ROLLED_BACK]
    assert are_equal(watched.method.state_dict()["tensors"], states[3])  # the snapshot of step 4, two quiet steps old
    rolled = watched.predict(make_few(7)).logits
    assert torch.equal(watched.step(make_few(7)).logits, rolled)  # answered without adapting
    fresh = create(spec, small_world.make_classifier())
    assert watched.health == [Level.RESET]  # the alarm came back, and the same snapshot would not help
    assert are_equal(watched.method.state, fresh.state)
    watched.step(make_few(8))
    assert watched.health == [Level.RESET]
    watched.step(make_few(9))
    assert watched.health == [Level.QUARANTINED]
    images = make_few(10)
    plainly = create("zeroshot", small_world.make_classifier()).predict(images).logits
    assert torch.equal(watched.step(images).logits, plainly)
    assert torch.equal(watched.predict(images).logits, plainly)
    assert are_equal(watched.method.state, fresh.state)
    assert watched.export_parameters().offset is None
    assert torch.equal(watched.export_parameters().prototypes, watched.classifier.prototypes)
    watched.resume()
    watched.settings = CALM
    assert torch.equal(watched.step(images).logits, fresh.step(images).logits)
    assert watched.health == [Level.WATCH]


def test_answers_that_are_not_finite_are_noticed() -> None:
    class Broken(torch.nn.Module):
        def __init__(self, tower: torch.nn.Module) -> None:
            super().__init__()
            self.tower = tower

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x[:, 0, :1] == 99.0, torch.nan, self.tower(x))

    world = small_world.make_classifier()
    for spec in ("lmr", "tent", "tda", "ecalp"):
        watched = make(spec, clip=lmr.ZeroShot(Broken(world.encoder), world.prototypes, 20.0))
        images = small_world.make_images(0)
        images[1, 0, 0] = 99.0
        for _ in range(3):
            assert watched.health == [Level.OK]
            watched.step(images)
        assert watched.health == [Level.WATCH]
        assert watched.events[0].alarms == ("not finite",)
        watched.step(images)
        assert watched.health == [Level.RESET]


def test_report_reports_and_never_acts() -> None:
    watched, plain = make("lmr", dataclasses.replace(LOUD, mode="report")), make("lmr").method
    for batch in range(6):
        images = small_world.make_images(batch)
        assert torch.equal(watched.step(images).logits, plain.step(images).logits)
    assert watched.health == [Level.ALARM]
    assert [event.after for event in watched.events] == [Level.WATCH, Level.ALARM]


def test_step_that_breaks_off_changes_nothing() -> None:
    watched = make("lmr")
    step_through(watched, range(6))
    watched.settings = dataclasses.replace(LOUD, every=1)
    before, calls, fatal = watched.state_dict(), 0, 0

    def stumble(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == fatal:
            raise RuntimeError("the encoder stumbled")

    handle = watched.classifier.encoder.register_forward_pre_hook(stumble)
    for number in (1, 2, 3):
        calls, fatal = 0, number
        with pytest.raises(lmr.LmrError):
            watched.step(small_world.make_images(7))
        assert are_equal(watched.state_dict(), before)
    handle.remove()
    with pytest.raises(lmr.LmrError, match="NaN"):
        watched.step(small_world.make_images(7) * float("nan"))
    assert are_equal(watched.state_dict(), before)


# Given views.


@pytest.mark.parametrize("spec", [name for name in METHODS if lmr.find_method(name).takes_views])
def test_given_views_are_watched_by_their_first(spec: str) -> None:
    """The frozen model, the canaries and a quarantined stream see the image, which is the first of its views."""

    def make_views(batch: int) -> Tensor:
        return torch.stack([small_world.make_images(batch + 10 * view) for view in range(3)], 1)

    def make_clip() -> lmr.ZeroShot:
        clip = make_sure()
        clip.input_shape = small_world.SHAPE  # images of this shape cannot be cropped: no method can make views of them
        return clip

    settings = dataclasses.replace(
        CALM, every=1, thresholds=dataclasses.replace(CALM.thresholds, top_share=9, entropy=0)
    )
    watched, plain = make(spec, settings, clip=make_clip()), create(spec, make_clip())
    frozen = create("zeroshot", make_clip())
    for batch in range(4):
        views = make_views(batch)
        labels = frozen.predict(views[:, 0]).labels.tolist()
        answer = watched.step(views)
        assert torch.equal(answer.logits, plain.step(views).logits)
        assert answer.info["compared"][0] == list(enumerate(labels))
        assert torch.equal(watched.predict(views).logits, plain.predict(views).logits)
    kept = watched.watches[0].canaries
    assert kept.images is not None
    assert len(kept.labels) >= 8
    assert kept.images.shape[1:] == small_world.SHAPE
    watched.watches[0] = dataclasses.replace(
        watched.watches[0], canaries=dataclasses.replace(kept, steps=200, passed=9999)
    )
    watched.step(make_views(4))
    assert len(watched.watches[0].canaries.history) == 1
    watched.pause()
    assert torch.equal(watched.step(views).logits, watched.method.predict(views).logits)
    health = dataclasses.replace(watched.watches[0].health, level=Level.QUARANTINED)
    watched.watches[0] = dataclasses.replace(watched.watches[0], health=health)
    expected = frozen.predict(views[:, 0]).logits
    assert torch.equal(watched.step(views).logits, expected)
    assert torch.equal(watched.predict(views).logits, expected)


# Many streams.


@pytest.mark.parametrize("spec", MANY)
def test_each_stream_of_a_mixed_batch_is_judged_alone(spec: str) -> None:
    """One stream is rolled back, one is quarantined, one is calm; each as if it were alone."""
    many, alone = make(spec, streams=4), [make(spec) for _ in range(4)]
    alone[1].watches[0] = many.watches[1] = dataclasses.replace(
        many.watches[1], health=dataclasses.replace(many.watches[1].health, level=Level.QUARANTINED)
    )
    for batch in range(7):
        images = small_world.make_images(batch)
        ids = torch.tensor([0, 1, 2, 0, 2, 1, 2, 2]) if batch % 3 else torch.tensor([0, 2] * 4)
        if batch == 4:
            for method in (many, *alone):
                method.settings = dataclasses.replace(LOUD, every=4)
        mixed = many.step(images, ids)
        for k in ids.unique().tolist():
            single = alone[k].step(images[ids == k])
            torch.testing.assert_close(mixed.logits[ids == k], single.logits, atol=1e-9, rtol=0)
            assert mixed.info["health"][k] == single.info["health"][0]
        if batch % 3:
            continue
        predicted = many.predict(images, ids).logits
        for k in ids.unique().tolist():
            torch.testing.assert_close(
                predicted[ids == k], alone[k].predict(images[ids == k]).logits, atol=1e-9, rtol=0
            )
    assert many.health == [method.health[0] for method in alone]
    assert len(set(many.health)) >= 3
    assert are_equal(many.state_dict([3])["watch"], alone[3].state_dict()["watch"])
    assert {event.stream for event in many.events} == {0, 2}


# Saved with the state.


@pytest.mark.parametrize("spec", KINDS)
def test_run_that_is_killed_at_any_batch_ends_in_the_same_bytes(spec: str, tmp_path: Path) -> None:
    """LMR is killed after each batch, every other method after each even or each odd one."""
    whole, path = make(spec), tmp_path / "state"
    expected = step_through(whole, range(11))
    whole.save(tmp_path / "whole")
    answers: list[Tensor] = []
    ends = range(1, 12) if spec == "lmr" else [*range(1 + METHODS.index(spec) % 2, 11, 2), 11]
    for begin, end in zip([0, *ends], ends, strict=False):
        resumed = make(spec)
        if begin:
            assert resumed.load(path) == {"seen": str(begin)}
        answers += step_through(resumed, range(begin, end))
        resumed.save(path, notes={"seen": str(end)})
    assert len(answers) == len(expected)
    assert all(map(torch.equal, answers, expected))
    resumed.save(path)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert resumed.events == whole.events
    assert {event.after for event in whole.events} >= {Level.WATCH, Level.ROLLED_BACK, Level.RESET, Level.QUARANTINED}


def test_state_without_a_watch_loads_and_the_reverse_is_refused(tmp_path: Path) -> None:
    plain, watched = make("lmr").method, make("lmr", LOUD)
    for batch in range(3):
        plain.step(small_world.make_images(batch))
        watched.step(small_world.make_images(batch))
    kept = watched.state_dict()
    plain.save(tmp_path / "plain", notes={"by": "hand"})
    watched.save(tmp_path / "watched")
    with pytest.raises(lmr.LmrError, match=r"watched method; load it into lmr\.Watched\(method\)"):
        plain.load(tmp_path / "watched")
    assert watched.load(tmp_path / "plain") == {"by": "hand"}
    assert watched.health == [Level.OK]
    assert are_equal(watched.method.state, plain.state)
    watched.load_state_dict(kept)
    assert are_equal(watched.state_dict(), kept)


def test_one_stream_moves_to_another_place(tmp_path: Path) -> None:
    many, other = make("lmr", streams=3), make("lmr")
    for batch in range(7):
        many.settings = CALM if batch < 5 else LOUD
        many.step(small_world.make_images(batch), [2] * 8)
    many.save(tmp_path / "two", streams=2)
    other.load(tmp_path / "two")
    assert other.health == [many.health[2]] == [Level.ROLLED_BACK]
    assert [event.stream for event in other.events] == [0, 0]
    many.load(tmp_path / "two", streams=1)
    assert many.health == [Level.OK, Level.ROLLED_BACK, Level.ROLLED_BACK]


def damage(state: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    text = json.loads(state["watch"])
    text[0][key] = value
    return state | {"watch": json.dumps(text)}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state | {"watch": "{"},
        lambda state: state | {"watch": "[]"},
        lambda state: state | {"watch": "[5]"},
        lambda state: damage(state, "health", {"level": "well"}),
        lambda state: damage(state, "snapshots", [1, 2, 3, 4, 5, 6, 7]),
        lambda state: damage(state, "canaries", {"labels": [1, 2, 3]}),
        lambda state: damage(state, "events", [{}]),
        lambda state: state | {"tensors": {k: v for k, v in state["tensors"].items() if "classes" not in k}},
        lambda state: state | {"tensors": state["tensors"] | {"watch/0/sums": torch.full((3,), -1.0).double()}},
        lambda state: state | {"tensors": state["tensors"] | {"watch/0/classes": torch.zeros(2, 9).double()}},
        lambda state: state | {"tensors": state["tensors"] | {"watch/0/undo/norms": torch.zeros(1, 9).double()}},
        lambda state: state | {"spec": "tent()"},
        lambda state: 5,
    ],
)
def test_damaged_watch_is_refused_and_changes_nothing(spoil: Any) -> None:
    watched, other = make("lmr"), make("lmr")
    step_through(watched, range(8))
    kept = other.state_dict()
    with pytest.raises(lmr.LmrError):
        other.load_state_dict(spoil(watched.state_dict()))
    assert are_equal(other.state_dict(), kept)


@pytest.mark.parametrize("spec", ONE_TOWER)
def test_snapshots_undo_and_canaries_follow_to_another_type(spec: str, tmp_path: Path) -> None:
    """What is saved after a move loads; a rollback and an undo give what the method itself would be converted to."""
    watched, states = make(spec, clip=make_sure()), []
    for batch in range(5):
        watched.step(small_world.make_images(batch))
        states.append(copy.deepcopy(watched.method.state_dict()))
    watched.rollback()
    kept = watched.watches[0]
    assert kept.undo is not None
    assert kept.canaries.images is not None
    watched.to(torch.float32)
    watched.save(tmp_path / "state")
    other = make(spec, clip=watched.classifier)
    other.load(tmp_path / "state")
    for method in (watched, other):
        for act, expected in ((method.undo, states[4]), (method.rollback, states[3])):
            act()
            plain = create(spec, make_sure())
            plain.load_state_dict(expected)
            assert are_equal(method.method.state, plain.to(torch.float32).state)
        method.resume()
        method.step(small_world.make_images(5).float())
        assert method.watches[0].canaries.images.dtype == torch.float16  # type: ignore[union-attr]


def test_copy_goes_on_by_itself() -> None:
    watched = make("lmr")
    step_through(watched, range(6))
    other = copy.deepcopy(watched)
    expected = step_through(watched, range(6, 9))
    assert all(map(torch.equal, step_through(other, range(6, 9)), expected))


# What an operator does.


@pytest.mark.parametrize("spec", METHODS)
def test_undo_restores_bytes(spec: str) -> None:
    watched = make(spec)
    step_through(watched, range(6))
    images = make_few(6)
    plain = copy.deepcopy(watched.method)
    plain.step(images)
    before = watched.watches[0].health.level
    watched.step(images)
    assert watched.health == [Level.ROLLED_BACK]
    watched.settings = CALM
    watched.step(make_few(7)[:2])
    watched.undo()
    assert are_equal(watched.method.state, plain.state)
    assert watched.health == [before]
    assert watched.signals().compared == 0
    assert watched.watches[0].health.rollbacks == ()


def test_undo_brings_back_the_snapshots_and_can_be_undone(tmp_path: Path) -> None:
    """Also from a file: after two rollbacks, an undo, and steps that take snapshots of their own."""
    watched = make("lmr")
    with pytest.raises(lmr.LmrError, match="nothing to undo"):
        watched.undo()
    for batch in range(7):
        watched.step(small_world.make_images(batch))
    assert list_snapshots(watched) == [2, 4, 6]
    watched.rollback()
    assert list_snapshots(watched) == [2, 4, 6]
    middle = watched.method.state_dict()
    watched.rollback()
    assert list_snapshots(watched) == [2, 4]
    watched.resume()
    for batch in range(7, 12):
        watched.step(small_world.make_images(batch))
    assert list_snapshots(watched) == [2, 4, 11]
    late = watched.method.state_dict()
    watched.save(tmp_path / "state")
    other = make("lmr")
    other.load(tmp_path / "state")
    for method in (watched, other):
        for expected, steps in ((middle, [2, 4, 6]), (late, [2, 4, 11]), (middle, [2, 4, 6])):
            method.undo()
            assert are_equal(method.method.state_dict(), expected)
            assert list_snapshots(method) == steps
        assert method.health == [Level.ROLLED_BACK]
        method.rollback()
        assert method.watches[0].snapshots[-1].step == 4
    assert are_equal(other.state_dict(), watched.state_dict())


def list_snapshots(watched: lmr.Watched) -> list[int]:
    return [one.step for one in watched.watches[0].snapshots]


def test_all_events_are_counted_and_100_are_kept() -> None:
    watched = make("zeroshot", dataclasses.replace(LOUD, thresholds=dataclasses.replace(EAGER, quiet=1, confirm=10**6)))
    calm = dataclasses.replace(CALM, every=1, thresholds=dataclasses.replace(CALM.thresholds, quiet=1))
    loud, changes = dataclasses.replace(watched.settings, every=1), 0
    for batch in range(240):
        watched.settings = loud if batch % 2 == 0 else calm
        changes += len(watched.step(small_world.make_images(batch % 9)[:1]).info["events"])
    assert len(watched.events) == 100
    assert sum(watched.count_events().values()) == changes == 240
    assert watched.first_event == 1
    assert watched.describe_events() == "The watch changed the health of streams: 120 to watch, 120 to ok."
    other = make("zeroshot")
    other.load_state_dict(watched.state_dict())
    assert other.describe_events() == watched.describe_events()


def test_reset_is_recorded_and_can_be_undone() -> None:
    watched = make("lmr", streams=2)
    for batch in range(5):
        watched.step(small_world.make_images(batch), [0, 1] * 4)
    before, other = watched.method.state_dict(1), watched.state_dict(0)
    watched.reset(1)
    fresh = make("lmr", streams=2)
    assert are_equal(watched.method.state_dict(1), fresh.method.state_dict(1))
    assert are_equal(watched.state_dict(0), other)
    (event,) = watched.events
    assert (event.stream, event.step, event.action, event.operator) == (1, 5, Action.RESET, True)
    assert watched.watches[1].snapshots == ()
    watched.undo(1)
    assert are_equal(watched.method.state_dict(1), before)
    assert len(watched.watches[1].snapshots) == 2


@pytest.mark.parametrize("action", ["rollback", "reset", "undo"])
def test_paused_stream_stays_paused(action: str) -> None:
    watched, states = make("lmr"), []
    for batch in range(5):
        watched.step(small_world.make_images(batch))
        states.append(watched.method.state_dict())
    if action == "undo":
        watched.rollback()
    watched.pause()
    getattr(watched, action)()
    assert watched.health == [Level.PAUSED]
    expected = {"rollback": states[3], "reset": make("lmr").method.state_dict(), "undo": states[4]}[action]
    for batch in range(5):
        assert are_equal(watched.method.state_dict(), expected)
        watched.step(small_world.make_images(batch))
    event = watched.events[-1]
    assert (event.before, event.after, event.operator) == (Level.PAUSED, Level.PAUSED, True)
    if action == "rollback":
        watched.rollback()  # to the one before
        assert are_equal(watched.method.state_dict(), states[1])
    watched.resume()
    assert watched.health == [Level.WATCH]


def test_action_that_changes_nothing_keeps_the_undo() -> None:
    """Without a snapshot a stream is reset, reset again and quarantined; the state before the first can be restored."""
    watched, plain = make("lmr", LOUD), make("lmr").method
    for batch in range(5):
        watched.step(small_world.make_images(batch))
        if batch < 2:
            plain.step(small_world.make_images(batch))
    assert [event.after for event in watched.events] == [
        Level.WATCH,
        Level.RESET,
        Level.RESET,
        Level.RESET,
        Level.QUARANTINED,
    ]
    watched.undo()
    assert are_equal(watched.method.state, plain.state)
    assert watched.health == [Level.WATCH]


def test_operator_goes_back_snapshot_by_snapshot() -> None:
    watched, states = make("lmr"), []
    for batch in range(5):
        watched.step(small_world.make_images(batch))
        states.append(watched.method.state_dict()["tensors"])
    for step in (4, 2):
        watched.rollback()
        assert are_equal(watched.method.state_dict()["tensors"], states[step - 1])
    with pytest.raises(lmr.LmrError, match="no older snapshot of stream 0; reset it"):
        watched.rollback()
    watched.undo()
    assert are_equal(watched.method.state_dict()["tensors"], states[3])


def test_operator_rolls_back_pauses_and_resumes() -> None:
    watched = make("lmr", streams=2)
    with pytest.raises(lmr.LmrError, match="no snapshot of stream 1"):
        watched.rollback(1)
    states = []
    for batch in range(3):
        watched.step(small_world.make_images(batch), [1] * 8)
        states.append(watched.method.state_dict(1)["tensors"])
    with pytest.raises(lmr.LmrError, match="adapts already"):
        watched.resume(1)
    watched.rollback(1)
    assert are_equal(watched.method.state_dict(1)["tensors"], states[1])
    watched.undo(1)
    assert are_equal(watched.method.state_dict(1)["tensors"], states[2])
    watched.pause(1)
    before = watched.method.state_dict()["tensors"]
    for batch in range(4):
        watched.step(small_world.make_images(batch), [1] * 8)
    assert are_equal(watched.method.state_dict()["tensors"], before)
    assert watched.health == [Level.OK, Level.PAUSED]
    watched.resume(1)
    watched.step(small_world.make_images(0), [1] * 8)
    assert not are_equal(watched.method.state_dict()["tensors"], before)
    assert [event.operator for event in watched.events] == [True] * 4
    for bad in (2, -1, "0", None):
        with pytest.raises(lmr.LmrError):
            watched.pause(bad)  # type: ignore[arg-type]


def test_canaries_are_kept_and_asked() -> None:
    clip = make_sure()
    settings = dataclasses.replace(
        CALM,
        every=1,
        thresholds=dataclasses.replace(ONLY_CANARIES, canary_agreement=2.0, confirm=8),
    )
    watched = make("lmr(lr=0.3)", settings, clip=clip)
    for batch in range(3):
        watched.step(small_world.make_images(batch))
    kept = watched.watches[0].canaries
    assert len(kept.labels) >= 8
    assert kept.images is not None
    frozen = create("zeroshot", clip)
    asked = kept.images.double()  # they are kept in half precision
    assert tuple(frozen.predict(asked).labels.tolist()) == kept.labels
    watched.watches[0] = dataclasses.replace(
        watched.watches[0], canaries=dataclasses.replace(kept, steps=200, passed=9999)
    )
    expected = (watched.predict(asked).labels == torch.tensor(kept.labels)).double().mean().item()
    watched.step(small_world.make_images(3))
    assert watched.events[-1].signals.canaries == pytest.approx(expected)
    assert "canaries" in watched.events[-1].alarms


def test_streams_share_the_memory_of_canaries_and_a_state_is_cut_to_it() -> None:
    """Each of two streams has half of the room, whatever the other keeps; a state with more keeps the first."""
    values = small_world.make_images(0)[0].numel()
    plenty = dataclasses.replace(CALM, every=1)
    tight = dataclasses.replace(plenty, canary_mb=2 * 10 * values * 2 / 1e6)  # ten canaries for each of two streams
    full, cut, none = (
        make("lmr", settings, clip=make_sure(), streams=2)
        for settings in (plenty, tight, dataclasses.replace(tight, canary_mb=tight.canary_mb / 2))
    )
    for watched in (full, cut, none):
        for batch in range(5):
            watched.step(small_world.make_images(batch), [0] * 8)
    kept = [watched.watches[0].canaries for watched in (full, cut, none)]
    assert len(kept[0].labels) > 10
    assert 8 <= len(kept[1].labels) <= 10
    assert kept[2].labels == ()
    cut.load_state_dict(full.state_dict())
    loaded = cut.watches[0].canaries
    assert (loaded.labels, loaded.history) == (kept[0].labels[:10], ())
    assert kept[0].images is not None
    assert loaded.images is not None
    assert torch.equal(loaded.images, kept[0].images[:10])


def test_stream_may_have_images_of_several_sizes() -> None:
    """The world's encoder takes any number of tokens; the canaries have the shape of the first of them."""
    watched = make("lmr", dataclasses.replace(CALM, every=1), clip=make_sure())
    plain = create("lmr", make_sure())
    for batch in range(6):
        images = small_world.make_images(batch)[:, : 4 if batch % 2 else 3]
        assert torch.equal(watched.step(images).logits, plain.step(images).logits)
    kept = watched.watches[0].canaries.images
    assert kept is not None
    assert kept.shape[1:] == (3, small_world.WIDTH)
    assert watched.watches[0].health.step == 6


@pytest.mark.parametrize("healthy", [True, False])
def test_fall_of_the_canaries_is_confirmed_by_fresh_checks(healthy: bool) -> None:
    clip = make_sure()
    rules = dataclasses.replace(ONLY_CANARIES, canary_fall=0.02, confirm=8, quiet=4)
    watched = make("zeroshot", dataclasses.replace(CALM, every=1, thresholds=rules), clip=clip)
    for batch in range(3):
        watched.step(small_world.make_images(batch))
    kept = watched.watches[0].canaries
    assert kept.images is not None
    wrong = tuple((label + 1) % clip.classes for label in kept.labels)
    fallen = dataclasses.replace(
        kept, history=(1.0,) * 5 + (0.5,) * 5, labels=kept.labels if healthy else wrong, steps=0, passed=0
    )
    watched.watches[0] = dataclasses.replace(watched.watches[0], canaries=fallen)
    watched.step(small_world.make_images(3))
    assert watched.health == [Level.WATCH]
    for batch in range(4, 8):
        watched.step(small_world.make_images(batch))
    after = [event.after for event in watched.events]
    assert after == [Level.WATCH, Level.OK] if healthy else after[:2] == [Level.WATCH, Level.RESET]


@pytest.mark.parametrize("streams", [1, 2])
def test_info_names_the_compared_images_and_the_frozen_labels(streams: int) -> None:
    watched, images = make("lmr", streams=streams), small_world.make_images(0)
    ids = None if streams == 1 else [1, 0, 1, 0, 1, 0, 1, 0]
    frozen = lmr.create("zeroshot", small_world.make_classifier()).predict(images).labels.tolist()
    own = {0: list(range(8))} if streams == 1 else {0: [1, 3, 5, 7], 1: [0, 2, 4, 6]}
    expected = {
        stream: [(n, frozen[place]) for n, place in enumerate(places) if n % 3 == 0] for stream, places in own.items()
    }
    assert watched.step(images, ids).info["compared"] == expected


def test_events_in_a_state_are_those_of_its_place() -> None:
    """The same stream in another row has the same bytes."""
    watched = make("lmr", streams=3)
    watched.pause(2)
    other = make("lmr", streams=3)
    other.load_state_dict(watched.state_dict([2]), [0])
    assert [event.stream for event in other.events] == [0]
    assert other.state_dict([0])["watch"] == watched.state_dict([2])["watch"]


def test_steps_are_counted_from_the_start_of_the_state() -> None:
    """The limit of the drift grows with them."""
    watched, counts = make("tent"), []
    for batch, act in enumerate((None, None, watched.reset, None, watched.undo)):
        if act is not None:
            act()
        watched.step(small_world.make_images(batch))
        counts.append(watched.signals().steps)
    assert counts == [1, 2, 1, 2, 5]
    forgetful = make("tent", dataclasses.replace(CALM, reset_every=2))
    for batch in range(5):
        forgetful.step(small_world.make_images(batch))
    assert forgetful.signals().steps == 1


# The settings.


def test_one_image_in_four_is_compared_at_first_and_then_one_in_sixteen() -> None:
    clip = small_world.make_classifier()
    encoded = []
    clip.encoder.register_forward_pre_hook(lambda _, given: encoded.append(len(given[0])))
    plain, watched = lmr.create("lmr", clip), lmr.Watched(lmr.create("lmr", clip), WatchSettings(canaries=0))
    counts = []
    for method in (plain, watched):
        encoded.clear()
        for batch in range(76):
            method.step(small_world.make_images(batch % 12))
        counts.append(sum(encoded))
    assert watched.health == [Level.OK]
    assert counts[1] - counts[0] == watched.signals().compared == YOUNG / 4 + (76 * 8 - YOUNG) / 16
    assert (watched.every, watched.every_young) == (16, 4)


@pytest.mark.parametrize(
    ("spec", "every"), [("tda", 32), ("zeroshot", 32), ("lmr(pmr=False)", 32), ("tent", 16), ("lmr(share=0.5)", 16)]
)
def test_fewer_images_are_compared_where_a_step_is_one_forward(spec: str, every: int) -> None:
    method = lmr.create(spec, small_world.make_classifier())
    for given, expected in ((None, every // 4), (4, 4)):
        watched = lmr.Watched(method, WatchSettings(every=given, canaries=0))
        assert (watched.every, watched.every_young) == (given or every, expected)
        for batch in range(8):
            watched.step(small_world.make_images(batch))
        assert watched.signals().compared == 64 / expected


def test_reset_every_is_the_simplest_guard() -> None:
    watched = make("lmr", WatchSettings(reset_every=3, signals=False))
    plain = lmr.create("lmr", small_world.make_classifier())
    for batch in range(8):
        if batch % 3 == 0:
            plain.reset()
        images = small_world.make_images(batch)
        assert torch.equal(watched.step(images).logits, plain.step(images).logits)
    assert watched.signals().compared == 0
    assert watched.events == []


def test_only_a_method_is_watched() -> None:
    with pytest.raises(lmr.LmrError, match="not watched yet"):
        lmr.Watched(make("lmr"))  # type: ignore[arg-type]
    with pytest.raises(lmr.LmrError, match="not watched yet, got str"):
        lmr.Watched("lmr")  # type: ignore[arg-type]
    with pytest.raises(lmr.LmrError, match=r"Expected lmr\.WatchSettings"):
        lmr.Watched(make("lmr").method, "on")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["on", "report"])
def test_reset_every_leaves_paused_streams_and_reports_alone(mode: Literal["on", "report"]) -> None:
    watched = make("lmr", WatchSettings(mode=mode, reset_every=2))
    plain = lmr.create("lmr", small_world.make_classifier())
    for method in (watched, plain):
        method.step(small_world.make_images(0))
    if mode == "on":
        watched.pause()
    for batch in range(1, 4):
        watched.step(small_world.make_images(batch))
        if mode == "report":
            plain.step(small_world.make_images(batch))
    assert all(torch.equal(watched.method.state[key], value) for key, value in plain.state.items())


# The parts of a batch.


BATCH = Streams(torch.tensor([0, 2]), torch.tensor([0, 1, 0, 0, 1, 0]))  # streams 0 and 2


def list_watches(level: Level = Level.OK, images: int = 0) -> list[StreamWatch]:
    plain = StreamWatch(Tally.begin(3))
    return [dataclasses.replace(plain, images=images, health=Health(level)), plain, plain]


def test_one_image_in_every_few_is_compared_by_its_number_in_the_stream() -> None:
    first, second = split_batch(BATCH, list_watches(images=2), 3, 3)
    assert (first.stream, first.places, first.compared) == (0, [0, 2, 3, 5], [2])  # numbers 2 to 5: the third image
    assert (second.stream, second.places, second.compared) == (2, [1, 4], [1])


def test_more_of_the_first_images_are_compared() -> None:
    first, second = split_batch(BATCH, list_watches(images=YOUNG - 3), 100, 2)
    assert first.compared == [2]  # numbers 509 to 512: of the last, one in 100
    assert second.compared == [1]
    assert split_batch(BATCH, list_watches(images=YOUNG - 3), 4, 100)[0].compared == [5]


def test_all_images_of_a_suspected_stream_are_compared_and_none_of_one_in_quarantine() -> None:
    assert split_batch(BATCH, list_watches(Level.WATCH), 3, 3)[0].compared == [0, 2, 3, 5]
    assert split_batch(BATCH, list_watches(Level.PAUSED), 3, 3)[0].compared == [0, 5]
    assert split_batch(BATCH, list_watches(Level.QUARANTINED), 3, 3)[0].compared == []
    assert [part.compared for part in split_batch(BATCH, list_watches(Level.WATCH), 0, 0)] == [[], []]


def test_info_is_of_the_streams_in_the_batch() -> None:
    watches = list_watches(Level.WATCH)
    parts = split_batch(BATCH, watches, 3, 3)
    frozen = {place: torch.tensor([0.0, 1.0]) for part in parts for place in part.compared}
    info = describe_batch(parts, watches, [], frozen)
    assert info["health"] == {0: "watch", 2: "ok"}
    assert set(info["signals"]) == {0, 2}
    assert info["events"] == []
    assert info["compared"] == {part.stream: [(part.places.index(k), 1) for k in part.compared] for part in parts}


def test_other_classes_keep_health_snapshots_and_undo_and_begin_signals_and_canaries_anew(tmp_path: Path) -> None:
    model = load_tiny()
    rules = dataclasses.replace(CALM, thresholds=dataclasses.replace(CALM.thresholds, quiet=1))
    watched = lmr.Watched(lmr.create("lmr", model.classifier(["red ring", "blue star"]), streams=2), rules)
    for images in draw_batches([6, 6, 6]):
        watched.step(images, [0, 1] * 3)
    watched.rollback(1)
    watched.pause(0)
    before = watched.watches[1]
    assert before.snapshots
    assert before.undo
    assert before.tally.compared or watched.watches[0].tally.compared
    watched.save(tmp_path / "old.state")
    wider = model.classifier(["green heart", "red ring", "blue star"])
    new = watched.with_classes(wider)
    adopted = lmr.Watched(lmr.create("lmr", wider, streams=2), rules)
    with pytest.raises(lmr.LmrError, match="other classes"):
        adopted.load(tmp_path / "old.state")
    adopted.load(tmp_path / "old.state", adopt=True)
    assert are_equal(adopted.state_dict(), new.state_dict())
    assert new.health == watched.health == [Level.PAUSED, Level.ROLLED_BACK]
    assert new.events == watched.events
    after = new.watches[1]
    assert after.signals.compared == 0
    assert after.canaries.images is None
    assert [one.step for one in after.snapshots] == [one.step for one in before.snapshots]
    assert torch.equal(after.snapshots[0].tensors["bias"][:, 1:], before.snapshots[0].tensors["bias"])
    state = new.state_dict(1)["tensors"]
    new.undo(1)
    assert not torch.equal(new.state["norms"][1:], state["norms"])
    assert torch.equal(new.state["norms"][1:], before.undo.tensors["norms"])
    new.resume(0)
    new.step(draw_batches([4])[0], [0, 1] * 2)
    assert new.signals(0).compared
