"""A watched method is a method: every registered one, alone and in mixed batches, through saves and rollbacks."""

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
from lmr.watch.settings import Thresholds, WatchSettings
from lmr.watch.signals import Tally
from lmr.watch.stream_watch import StreamWatch
from lmr.watch.watched import YOUNG, split_batch
from tiny_models import draw_batches, load_tiny

METHODS = lmr.list_methods()
# A watch knows no method: one of each base class is watched.
KINDS = sorted({"lmr", "tda", *{lmr.find_method(name).__mro__[1]: name for name in METHODS}.values()})
MANY = [name for name in KINDS if not lmr.find_method(name).single_stream_reason]
ONE_TOWER = [name for name in KINDS if Tower.TEXT not in lmr.find_method(name).towers]  # prompts are float64 here
CALM = WatchSettings(every=3, thresholds=Thresholds(drift=99, quiet=2, rest=2, doubt=99))
EAGER = dataclasses.replace(CALM.thresholds, entropy=1e6, spread=1e6, entropy_ratio=0.0, least=1, confirm=1)
LOUD = dataclasses.replace(CALM, thresholds=EAGER)  # every comparison is an alarm


def make(spec: str, settings: WatchSettings = CALM, streams: int = 1, clip: lmr.ZeroShot | None = None) -> lmr.Watched:
    return lmr.Watched(create(spec, clip or small_world.make_classifier(), streams=streams), settings)


def make_few(batch: int) -> Tensor:
    """Four images, for tests of all methods."""
    return small_world.make_images(batch)[:4]


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


@pytest.mark.parametrize("spec", KINDS)
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


def test_info_is_plain() -> None:
    watched = make("lmr", LOUD)
    for batch in range(3):
        info = watched.step(small_world.make_images(batch)).info
        assert json.loads(json.dumps(info))["health"] == {"0": info["health"][0]}
        assert type(info["health"][0]) is str
    assert [event["after"] for event in info["events"]] == ["reset"]
    assert [event.after for event in watched.events] == [Level.SUSPECTED, Level.RESET, Level.RESET]
    assert watched.events[1].alarms == ("entropy",)
    assert watched.events[1].action is Action.RESET
    assert watched.events[1].signals.compared > 0


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
    assert watched.health == [Level.SUSPECTED]
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
    assert watched.health == [Level.PAUSED]  # at its start: adapting has failed too often
    images = make_few(10)
    assert torch.equal(watched.step(images).logits, fresh.predict(images).logits)
    assert are_equal(watched.method.state, fresh.state)
    watched.resume()
    watched.settings = CALM
    assert torch.equal(watched.step(images).logits, fresh.step(images).logits)
    assert watched.health == [Level.SUSPECTED]


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
        assert watched.health == [Level.SUSPECTED]
        assert watched.events[0].alarms == ("not finite",)
        watched.step(images)
        assert watched.health == [Level.RESET]


def test_report_reports_and_never_acts() -> None:
    watched, plain = make("lmr", dataclasses.replace(LOUD, mode="report")), make("lmr").method
    for batch in range(6):
        images = small_world.make_images(batch)
        assert torch.equal(watched.step(images).logits, plain.step(images).logits)
    assert watched.health == [Level.ALARM]
    assert [event.after for event in watched.events] == [Level.SUSPECTED, Level.ALARM]


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


def test_given_views_are_compared_by_their_first() -> None:
    clip = small_world.make_classifier()
    clip.input_shape = small_world.SHAPE  # which tells views from images
    watched, frozen = make("tpt", dataclasses.replace(CALM, every=1), clip=clip), create("zeroshot", clip)
    views = torch.stack([small_world.make_images(view) for view in range(3)], 1)
    answer = watched.step(views)
    assert answer.info["compared"][0] == list(enumerate(frozen.predict(views[:, 0]).labels.tolist()))
    watched.pause()
    assert torch.equal(watched.step(views).logits, watched.method.predict(views).logits)


# Many streams.


@pytest.mark.parametrize("spec", MANY)
def test_each_stream_of_a_mixed_batch_is_judged_alone(spec: str) -> None:
    """One stream is rolled back, one is paused, one is calm; each as if it were alone."""
    many, alone = make(spec, streams=4), [make(spec) for _ in range(4)]
    alone[1].watches[0] = many.watches[1] = dataclasses.replace(
        many.watches[1], health=dataclasses.replace(many.watches[1].health, level=Level.PAUSED)
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
    assert {event.after for event in whole.events} >= {Level.SUSPECTED, Level.ROLLED_BACK, Level.RESET, Level.PAUSED}


def test_state_without_a_watch_loads_and_the_reverse_is_refused(tmp_path: Path) -> None:
    plain, watched = make("lmr").method, make("lmr", LOUD)
    for batch in range(3):
        plain.step(small_world.make_images(batch))
        watched.step(small_world.make_images(batch))
    kept = watched.state_dict()
    plain.save(tmp_path / "plain", notes={"by": "hand"})
    watched.save(tmp_path / "watched")
    with pytest.raises(lmr.LmrError, match="wrapper"):
        plain.load(tmp_path / "watched")
    assert watched.load(tmp_path / "plain") == {"by": "hand"}
    assert watched.health == [Level.OK]
    assert are_equal(watched.method.state, plain.state)
    watched.load_state_dict(kept)
    assert are_equal(watched.state_dict(), kept)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state | {"watch": "{"},
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
def test_snapshots_follow_to_another_type(spec: str, tmp_path: Path) -> None:
    """What is saved after a move loads, and a rollback gives what the method itself would be converted to."""
    watched, states = make(spec), []
    for batch in range(5):
        watched.step(small_world.make_images(batch))
        states.append(copy.deepcopy(watched.method.state_dict()))
    watched.to(torch.float32)
    watched.save(tmp_path / "state")
    other = make(spec, clip=watched.classifier)
    other.load(tmp_path / "state")
    plain = create(spec, small_world.make_classifier())
    plain.load_state_dict(states[3])
    plain.to(torch.float32)
    for method in (watched, other):
        method.rollback()
        assert are_equal(method.method.state, plain.state)


# What an operator does.


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
    assert watched.describe_events() == "The watch changed the health of streams: 120 to suspected, 120 to ok."
    other = make("zeroshot")
    other.load_state_dict(watched.state_dict())
    assert other.describe_events() == watched.describe_events()


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


def test_steps_are_counted_from_the_start_of_the_state() -> None:
    """The limit of the drift grows with them."""
    watched, counts = make("tent"), []
    for batch, act in enumerate((None, None, watched.reset, None)):
        if act is not None:
            act()
        watched.step(small_world.make_images(batch))
        counts.append(watched.signals().steps)
    assert counts == [1, 2, 1, 2]
    forgetful = make("tent", dataclasses.replace(CALM, reset_every=2))
    for batch in range(5):
        forgetful.step(small_world.make_images(batch))
    assert forgetful.signals().steps == 1


# The settings.


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


def test_all_images_of_a_suspected_stream_are_compared() -> None:
    assert split_batch(BATCH, list_watches(Level.SUSPECTED), 3, 3)[0].compared == [0, 2, 3, 5]
    assert split_batch(BATCH, list_watches(Level.PAUSED), 3, 3)[0].compared == [0, 5]
    assert [part.compared for part in split_batch(BATCH, list_watches(Level.SUSPECTED), 0, 0)] == [[], []]


def test_other_classes_keep_health_and_snapshots_and_begin_signals_anew(tmp_path: Path) -> None:
    model = load_tiny()
    rules = dataclasses.replace(CALM, thresholds=dataclasses.replace(CALM.thresholds, quiet=1))
    watched = lmr.Watched(lmr.create("lmr", model.classifier(["red ring", "blue star"]), streams=2), rules)
    for images in draw_batches([6, 6, 6]):
        watched.step(images, [0, 1] * 3)
    watched.rollback(1)
    watched.pause(0)
    before = watched.watches[1]
    assert before.snapshots
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
    assert [one.step for one in after.snapshots] == [one.step for one in before.snapshots]
    assert torch.equal(after.snapshots[0].tensors["bias"][:, 1:], before.snapshots[0].tensors["bias"])
    new.resume(0)
    new.step(draw_batches([4])[0], [0, 1] * 2)
    assert new.signals(0).compared
