"""Labels: whole streams against an independent reference, and all that a wrapper does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import lmr
from few_views import create
from lmr.core.functional.offset import learn_offset
from lmr.core.functional.pixels import VARIANCES, describe_pixels
from lmr.core.labelled import ASKED, PER_STEP, RECENT
from offset_reference import choose_start, fit_by_scipy, match_by_iteration
from tiny_models import draw_batches, load_tiny

NAMES = ["red ring", "blue star", "green heart", "purple square"]
OTHERS = ["blue star", "orange cross", "red ring", "green heart", "purple square"]
IDS = [0, 1, 1, 0, 2, 1]


@pytest.fixture(scope="module")
def backbone() -> lmr.Backbone:
    return load_tiny()


@pytest.fixture(scope="module")
def clip(backbone: lmr.Backbone) -> lmr.ZeroShot:
    return backbone.classifier(NAMES)


def make(clip: lmr.ZeroShot, streams: int = 3, spec: str = "zeroshot") -> Any:
    return lmr.Labelled(lmr.create(spec, clip, streams=streams))


class Reference:
    """Labels of one stream as the documentation describes them, in NumPy and SciPy."""

    def __init__(self, biased: bool) -> None:
        self.biased = biased  # the method corrects its own bias
        self.logits: list[NDArray] = []
        self.pixels: list[NDArray] = []
        self.labels: list[tuple[NDArray, int, NDArray, int]] = []  # logits, class, pixels, of how many
        self.offset: NDArray | float = 0.0
        self.used: list[bool] = []

    def mean_last(self) -> NDArray:
        return np.mean(self.pixels[-32:], 0)

    def is_near(self, one: NDArray, count: int) -> bool:
        limit = max(1, 16 / min(count, len(self.pixels)))
        return bool((((one - self.mean_last()) ** 2) / np.array(VARIANCES)).max() <= limit)

    def step(self, logits: NDArray, pixels: NDArray) -> NDArray:
        answers = logits + self.offset
        for row, own in zip(logits, pixels, strict=True):
            kept = np.clip((row - row.max()).astype(np.float32), -64, 0).astype(np.float16)
            self.logits.append(kept.astype(np.float64))
            self.pixels.append(own)
        if self.labels and self.find_used() != self.used:
            self.fit()
        return answers

    def find_used(self) -> list[bool]:
        return [self.is_near(pixels, count) for _, _, pixels, count in self.labels]

    def learn(self, number: int, label: int) -> None:
        seen = len(self.pixels)
        first, end = max(0, seen - RECENT, number - 16), min(seen, number + 16)
        self.labels.append((self.logits[number], label, np.mean(self.pixels[first:end], 0), end - first))

    def fit(self) -> None:
        self.used = self.find_used()
        classes = len(self.logits[0])
        here = [own for own, used in zip(self.labels, self.used, strict=True) if used]
        counts = np.bincount([label for _, label, _, _ in self.labels], minlength=classes).astype(float)
        start = np.zeros(classes)
        if not self.biased and (here or counts.sum() >= 20):
            near: list[NDArray] = []
            for end in range(min(len(self.pixels), RECENT), 0, -32):
                part = slice(len(self.pixels) - min(len(self.pixels), RECENT) + max(0, end - 32), None)
                stop = len(self.pixels) - min(len(self.pixels), RECENT) + end
                if not self.is_near(np.mean(self.pixels[part.start : stop], 0), stop - part.start):
                    break
                near += self.logits[part.start : stop]
            shares = counts + 8 / classes
            start = match_by_iteration(np.array(near), shares / shares.sum()) / 2
        if here:
            z, labels = np.array([own[0] for own in here]), np.array([own[1] for own in here])
            if not self.biased:
                elsewhere = counts - np.bincount(labels, minlength=classes)
                start = choose_start(np.array(near), z, labels, np.arange(len(labels)), elsewhere)
            start = fit_by_scipy(z, labels, start)
        self.offset = start


def draw_stream(count: int, bright: Sequence[bool]) -> list[Tensor]:
    """Return batches of six images; bright ones are of another domain."""
    batches = draw_batches([6] * count)
    return [batch + 3.0 if here else batch for batch, here in zip(batches, bright, strict=True)]


@pytest.mark.parametrize("spec", ["zeroshot", "lmr"])
def test_streams_equal_the_reference(clip: lmr.ZeroShot, spec: str) -> None:
    bright = [False] * 8 + [True] * 14 + [False] * 14
    batches = draw_stream(len(bright), bright)
    method, plain = make(clip, 2, spec), lmr.create(spec, clip, streams=2)
    references = [Reference(spec == "lmr") for _ in range(2)]
    ids = torch.tensor([0, 1, 1, 0, 1, 1])
    for number, batch in enumerate(batches):
        found, given = method.step(batch, ids).logits, plain.step(batch, ids).logits
        for stream, reference in enumerate(references):
            own = ids == stream
            expected = reference.step(given[own].numpy(), describe_pixels(batch[own]).numpy())
            np.testing.assert_allclose(found[own], expected, atol=5e-3)
        if number in (5, 6, 15, 30):
            stream = number % 2
            reference = references[stream]
            seen = len(reference.pixels)
            chosen = [seen - 1, seen - 2, seen - 4]
            labels = [number % 4, 1, 1]
            method.learn_labels(chosen, labels, [stream] * 3)
            for place, label in zip(chosen, labels, strict=True):
                reference.learn(place, label)
            reference.fit()
        for stream, reference in enumerate(references):
            assert method.count_used()[stream] == sum(reference.used)
    assert any(False in reference.used and True in reference.used for reference in references)


def test_no_labels_change_nothing(clip: lmr.ZeroShot) -> None:
    plain, method = lmr.create("lmr", clip, streams=3), make(clip, spec="lmr")
    for batch in draw_batches([6, 6, 6]):
        assert torch.equal(plain.step(batch, IDS).logits, method.step(batch, IDS).logits)
        assert torch.equal(plain.predict(batch, IDS).logits, method.predict(batch, IDS).logits)
    assert method.estimate() is None


def test_labels_touch_no_other_stream(clip: lmr.ZeroShot) -> None:
    plain, method = make(clip), make(clip)
    for batch in draw_batches([6, 6]):
        plain.step(batch, IDS)
        method.step(batch, IDS)
    method.learn_labels([0, 1], [2, 2], [1, 1])
    (batch,) = draw_batches([6])
    other = torch.tensor(IDS) != 1
    assert torch.equal(plain.step(batch, IDS).logits[other], method.step(batch, IDS).logits[other])
    assert method.count_used() == [0, 2, 0]


def test_labels_of_images_and_of_numbers_agree(clip: lmr.ZeroShot) -> None:
    (batch,) = draw_batches([6])
    first, second = make(clip, 1), make(clip, 1)
    for method in (first, second):
        method.step(batch)
    first.learn_labels([0, 3], [1, 2])
    second.learn_labels(batch[[0, 3]], [1, 2])
    assert torch.equal(first.predict(batch).logits, second.predict(batch).logits)
    fresh = make(clip, 1)  # before any image was answered
    fresh.learn_labels(batch, [0] * 6)
    assert fresh.count_used() == [6]
    assert fresh.predict(batch).labels.tolist().count(0) >= make(clip, 1).predict(batch).labels.tolist().count(0)


def test_a_corrected_label_replaces_the_first(clip: lmr.ZeroShot) -> None:
    (batch,) = draw_batches([6])
    twice, once = make(clip, 1), make(clip, 1)
    for method in (twice, once):
        method.step(batch)
    twice.learn_labels([0, 1, 0], [1, 2, 3])
    once.learn_labels([0, 1], [3, 2])
    assert twice.count_used() == [2]
    assert torch.equal(twice.predict(batch).logits, once.predict(batch).logits)


def test_images_that_were_asked_for_are_remembered(clip: lmr.ZeroShot, tmp_path: Path) -> None:
    """A label that comes much later says the same, and only of these images."""
    soon, late = make(clip, 2), make(clip, 2)
    batches = draw_batches([6] * (RECENT // 6 + 2))
    for method in (soon, late):
        method.step(batches[0], [1] * 6)
        method.step(batches[1], [1] * 6)
    soon.learn_labels([2, 7], [1, 2], [1, 1])
    late.remember([2, 7], 1)
    late.remember([7], 1)
    late.save(tmp_path / "state")
    late = make(clip, 2)
    late.load(tmp_path / "state")
    for method in (soon, late):
        for batch in batches[2:]:
            method.step(batch, [1] * 6)
    assert late.list_learnable([1, 2, 7, 8, RECENT, 10**6], 1) == [False, True, True, False, True, False]
    assert late.list_learnable([2], 0) == [False]
    with pytest.raises(lmr.LmrError, match="Image 3 of stream 1 is not among"):
        late.learn_labels([3], [1], [1])
    late.learn_labels([2, 7], [1, 2], [1, 1])
    for key in ("logits", "truth", "number", "pixels", "around"):
        assert torch.equal(late.own[key], soon.own[key])
    assert late.list_learnable([2], 1) == [True]
    seen = 6 * len(batches)
    late.remember(range(seen - ASKED, seen), 1)  # others take their places
    assert late.list_learnable([2, 7, RECENT], 1) == [False, False, True]


def test_state_is_resumed_bit_for_bit(clip: lmr.ZeroShot, tmp_path: Path) -> None:
    batches = draw_batches([6, 6, 6, 6])
    method = lmr.Labelled(lmr.Watched(lmr.create("lmr", clip, streams=3)))
    method.step(batches[0], IDS)
    method.learn_labels([0, 1, 2], [1, 1, 3], [0, 0, 1])
    method.step(batches[1], IDS)
    method.save(tmp_path / "state")
    expected = [method.step(batch, IDS).logits for batch in batches[2:]]
    other = lmr.Labelled(lmr.Watched(lmr.create("lmr", clip, streams=3)))
    other.load(tmp_path / "state")
    assert all(map(torch.equal, [other.step(batch, IDS).logits for batch in batches[2:]], expected))
    method.learn_labels([3], [0], [1])
    other.learn_labels([3], [0], [1])
    assert torch.equal(method.own["offset"], other.own["offset"])
    other.load_state_dict(lmr.create("lmr", clip, streams=3).state_dict())  # of a method without labels
    assert other.count_used() == [0, 0, 0]


def test_labels_follow_the_names_of_classes(backbone: lmr.Backbone, clip: lmr.ZeroShot) -> None:
    (batch,) = draw_batches([6])
    method, others = make(clip, 1), backbone.classifier(OTHERS)
    method.step(batch)
    method.learn_labels([0, 1, 2], [0, 0, 1])
    wider = method.with_classes(others)
    assert wider.own["truth"][0].argmax(1)[:3].tolist() == [2, 2, 0]
    wider.step(batch)
    wider.learn_labels([6], [1])  # the new class
    narrow = wider.with_classes(backbone.classifier(OTHERS[:2]))  # two labels are of a class that is gone
    assert narrow.estimate().labels == 2
    narrow.learn_labels([6], [1])
    assert narrow.count_used() == [2]
    adopted = make(others, 1)
    adopted.load_state_dict(adopted.adopt(method.state_dict()))
    assert torch.equal(adopted.own["truth"], method.with_classes(others).own["truth"])


def test_the_watch_does_not_roll_labels_back(clip: lmr.ZeroShot) -> None:
    method = lmr.Labelled(lmr.Watched(lmr.create("lmr", clip), lmr.WatchSettings(every=2)))
    (batch,) = draw_batches([6])
    assert method.step(batch).info["health"] == {0: "ok"}
    method.learn_labels([0, 1], [2, 2])
    method.method.reset()
    assert method.count_used() == [2]
    method.reset()  # by a user of the method
    assert method.count_used() == [0]


def test_estimate_judges_each_label_without_it(clip: lmr.ZeroShot) -> None:
    method = make(clip, 1, "lmr")
    (batch,) = draw_batches([24])
    answer = method.step(batch).labels.tolist()
    method.learn_labels(range(24), answer)
    estimate = method.estimate()
    assert estimate.labels == 24
    assert estimate.right >= 22
    assert 0.7 < estimate.interval[0] < estimate.accuracy <= estimate.interval[1] <= 1


def test_steady_counts_labels_as_well(clip: lmr.ZeroShot) -> None:
    method = make(clip, 1, "steady")
    (batch,) = draw_batches([6])
    method.step(batch)
    before = method.method.state["history"].clone()
    method.learn_labels([0, 1], [3, 3])
    assert method.method.state["history"][0, 3] > before[0, 3]
    method.learn_labels([0], [3])  # the same again
    assert method.method.state["history"].sum() == pytest.approx(float(before.sum()), abs=1)
    counts = method.method.state["history"].clone()
    method.learn_labels([2], [3], replace_counts=False)  # its answer was not counted
    counts[0, 3] += 1
    assert torch.equal(method.method.state["history"], counts)


def test_labels_of_steady_are_those_of_the_frozen_model_until_it_adapts(clip: lmr.ZeroShot) -> None:
    """Stream by stream: d0 is 0 only while the method corrects the bias of the stream."""
    frozen, steady = make(clip, 3), make(clip, 3, "steady")
    batches, others = draw_batches([6] * 8), torch.tensor(IDS) != 1
    for method in (frozen, steady):
        method.step(batches[0], IDS)
    steady.method.state["adapting"][1] = 1
    for method in (frozen, steady):
        method.learn_labels([0, 1, 0, 1, 0], [3, 3, 2, 3, 1], [0, 0, 1, 1, 2])
    assert frozen.own["offset"].any(1).all()
    assert torch.equal(steady.own["offset"], frozen.own["offset"])
    for batch in batches[1:]:
        found, expected = steady.step(batch, IDS).logits, frozen.step(batch, IDS).logits
        torch.testing.assert_close(found[others], expected[others])  # other images in a forward: not bit for bit
    bias = steady.logit_offset().any(1)
    assert bias.tolist() == [False, True, False]
    torch.testing.assert_close(steady.own["offset"][~bias], frozen.own["offset"][~bias])
    own = {key: value[1] for key, value in steady.own.items()}
    used = own["used"].bool()
    expected = learn_offset(own["logits"][used].float(), own["truth"][used].argmax(1))  # d0 = 0, without a new label
    assert torch.equal(own["offset"], expected.to(own["offset"].dtype))
    assert all(steady.estimate(stream) == frozen.estimate(stream) for stream in (0, 2))


def test_a_state_of_the_last_images_alone_has_no_labels(clip: lmr.ZeroShot) -> None:
    method, other = make(clip, 1), make(clip, 1)
    (batch,) = draw_batches([6])
    method.step(batch)
    state = method.state_dict()
    state["tensors"] = {
        key: value
        for key, value in state["tensors"].items()
        if key.rpartition("labels/")[2] in PER_STEP or "/" not in key
    }
    other.load_state_dict(state)
    for one in (method, other):
        one.learn_labels([1], [2])
    assert other.dump() == method.dump()


@pytest.mark.parametrize("name", lmr.list_methods())
def test_every_method_takes_labels(clip: lmr.ZeroShot, name: str) -> None:
    (batch,) = draw_batches([6])
    method = lmr.Labelled(create(name, clip))
    method.step(batch)
    method.learn_labels([0, 1], [2, 2])
    assert method.step(batch).logits.isfinite().all() or method.logit_floor() is not None
