"""Signals against plain Python, image by image, and alarms at their thresholds."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmr.watch.settings import Thresholds
from lmr.watch.signals import Signals, Tally, add_images, find_alarms, measure, measure_sureness

CLASSES, MEMORY = 4, 8
Compared = tuple[int, int, float, float, float]  # labels and entropies, adapted and frozen, and how sure
WELL = Signals(100, 0, 1.0, 0.0, 1.0, 1.0, 0.01, 1.0)
IMAGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 1.5), st.floats(0, 1.5), st.floats(0.01, 1)),
    min_size=1,
    max_size=40,
)


def compute_plainly(images: list[Compared]) -> dict[str, float]:
    """The definition: averages with weight (1 - 1/memory) ** age, by loops."""
    weights = [(1 - 1 / MEMORY) ** age for age in range(len(images) - 1, -1, -1)]
    total = sum(weights)

    def share(which: int, label: int) -> float:
        return sum(w for w, image in zip(weights, images, strict=True) if image[which] == label) / total

    def spread(which: int) -> float:
        shares = [share(which, label) for label in range(CLASSES)]
        return math.exp(-sum(p * math.log(p) for p in shares if p > 0))

    def mean(values: list[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True)) / total

    slow = [(1 - 1 / (2 * MEMORY)) ** age for age in range(len(images) - 1, -1, -1)]
    certain = [
        sum(w * image[4] for w, image in zip(slow, images, strict=True) if image[1] == label)
        for label in range(CLASSES)
    ]
    sure = [value / sum(certain) for value in certain]
    kept = sum(w * image[4] for w, image in zip(slow, images, strict=True) if image[0] == image[1])
    tops = [max(share(which, label) for label in range(CLASSES)) for which in (0, 1)]
    return {
        "concentration": spread(0) / spread(1),
        "sureness": sum(certain) / sum(slow),
        "sure_classes": math.exp(-sum(p * math.log(p) for p in sure if p > 0)),
        "sure_agreement": kept / sum(certain),
        "top_share": tops[0] - tops[1],
        "entropy": mean([image[2] for image in images]),
        "frozen_entropy": mean([image[3] for image in images]),
        "agreement": mean([float(image[0] == image[1]) for image in images]),
    }


def tally_in_parts(images: list[Compared], part: int) -> Tally:
    tally = Tally.begin(CLASSES)
    for first in range(0, len(images), part):
        a, b, h, g, s = zip(*images[first : first + part], strict=True)
        entropies, sureness = (torch.tensor(values, dtype=torch.float64) for values in ([h, g], s))
        tally = add_images(tally, torch.tensor([a, b]), entropies, sureness, MEMORY)
    return tally


@given(IMAGES, st.integers(1, 50))
def test_signals_are_their_definition_however_the_images_are_batched(images: list[Compared], part: int) -> None:
    tally = tally_in_parts(images, part)
    assert tally.compared == len(images)
    found = dataclasses.asdict(measure(tally, 0, None))
    for key, value in compute_plainly(images).items():
        assert found[key] == pytest.approx(value, abs=1e-9), key


def test_answers_are_sure_above_one_half() -> None:
    logits = torch.tensor([[0.5, 0.5, 1e-9], [0.75, 0.15, 0.1], [0.4, 0.3, 0.3], [1.0, 1e-30, 1e-30]]).log()
    assert measure_sureness(logits).tolist() == pytest.approx([0, 0.5, 0, 1], abs=1e-6)
    tally = add_images(Tally.begin(3), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1), torch.zeros(1), MEMORY)
    assert tally.averages[-3:] == (0, None, None)


def test_nothing_is_known_before_the_first_image() -> None:
    signals = measure(Tally.begin(CLASSES), 0, math.nan)
    assert signals == Signals(0, 0, None, None, None, None, None, None)
    assert find_alarms(signals, Thresholds(), 10) == ()


SURE = {"sureness": 0.43, "sure_classes": 4.7, "sure_agreement": 0.86}
LOW = 0.2 * math.log(100) / math.log(1000)


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        ({"not_finite": 3}, "not finite"),
        ({"concentration": 0.49, "top_share": 0.26}, "concentration"),
        ({"entropy": LOW - 0.001, "frozen_entropy": 3 * LOW + 0.001, "concentration": 0.89}, "entropy"),
        ({"entropy": 1.51, "frozen_entropy": 1.5, "compared": 32, **SURE}, "doubt"),
        ({"drift": 0.31, "steps": 1000}, "drift"),
        ({"drift": 0.61, "steps": 4000}, "drift"),
    ],
)
def test_alarm_needs_its_threshold(change: dict[str, float], alarm: str) -> None:
    limits = Thresholds(
        concentration=0.5,
        top_share=0.25,
        entropy=0.2,
        entropy_ratio=3,
        doubt=1,
        doubt_sureness=0.36,
        spread=0.9,
        drift=0.3,
    )
    assert find_alarms(WELL, limits, 100) == ()
    assert find_alarms(dataclasses.replace(WELL, **change), limits, 100) == (alarm,)


@pytest.mark.parametrize(
    "change",
    [
        {"not_finite": 2},
        {"concentration": 0.1},  # a camera may really see one class
        {"top_share": 0.9},
        {"entropy": 0.001, "frozen_entropy": 0.2, "concentration": 0.8},
        {"entropy": 0.001, "frozen_entropy": 0.9},  # a better model becomes sure, too
        {"entropy": 9.0, "sureness": 0.5},  # it is not known how many classes the sure answers show
        {"entropy": 9.0, **SURE, "sure_classes": 4.8},  # not few
        {"entropy": 9.0, **SURE, "sureness": 0.35},  # the frozen model is seldom sure
        {"entropy": 9.0, **SURE, "sure_agreement": 0.84},  # the adapted model gives up its sure answers
        {"entropy": 1.0, **SURE},  # the adapted one is as sure
        {"entropy": 9.0, **SURE, "concentration": 0.89},  # and its answers are narrower
        {"entropy": 9.0, **SURE, "compared": 31},
        {"drift": 0.74, "steps": 9000},  # and moves
        {"concentration": 0.1, "top_share": 0.9, "compared": 27},
        {"agreement": 0.0},
    ],
)
def test_what_is_no_alarm(change: dict[str, float]) -> None:
    assert find_alarms(dataclasses.replace(WELL, **change), Thresholds(), 100) == ()


def test_few_classes_are_fewer_where_there_are_few() -> None:
    def find(classes: int, number: float) -> tuple[str, ...]:
        doubtful = dataclasses.replace(WELL, entropy=0.2, frozen_entropy=0.1, **SURE | {"sure_classes": number})
        return find_alarms(doubtful, Thresholds(), classes)

    assert [find(4, number) for number in (1.9, 2.1)] == [("doubt",), ()]
    assert [find(10, number) for number in (4.7, 4.8)] == [("doubt",), ()]
    assert [find(1000, number) for number in (4.7, 4.8)] == [("doubt",), ()]
    assert find(2, 1.0) == ()  # one of two classes may be all that there is
