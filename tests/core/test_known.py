"""Scores, thresholds and what unknown images do to a method, against the definitions in NumPy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import lmr
import small_world
from lmr.core.known import begin_scores, find_threshold, judge, score_known
from lmr.core.streams import Streams

Values = NDArray[np.float64]
SPECS = ("lmr", "steady", "steady(prior='uniform')", "tent", "zeroshot")


def choose_threshold(histogram: Values, block: Values) -> float:
    """The rule of docs/unknown.md, written as loops: Otsu's split of 64 bins, if its sides are two modes."""
    middle = [(k + 0.5) / 64 for k in range(64)]
    best, split = 0.0, None
    for k in range(63):
        low, high = histogram[: k + 1].sum(), histogram[k + 1 :].sum()
        if low == 0 or high == 0:
            continue
        left = sum(histogram[j] * middle[j] for j in range(k + 1)) / low
        right = sum(histogram[j] * middle[j] for j in range(k + 1, 64)) / high
        between = low * high * (right - left) ** 2
        if split is None or between > best * (1 + 1e-12):
            best, split, apart = between, k, right - left
    if split is None or apart < 0.28:
        return 0.3
    total = histogram.sum()
    low, high = histogram[: split + 1].sum(), histogram[split + 1 :].sum()
    if min(low, high) < 0.05 * total or block[split + 1 :].sum() / block.sum() < 0.5 * high / total:
        return 0.3
    return max(0.3, (split + 1) / 64)


def judge_alone(scores: Values) -> tuple[list[bool], Values, Values, float]:
    """One stream, image by image."""
    histogram, block, threshold = np.zeros(64), np.zeros(64), 0.3
    unknown = []
    for score in scores:
        if not math.isfinite(score):
            unknown.append(False)
            continue
        unknown.append(bool(score < threshold))
        block[min(63, int(score * 64))] += 1
        if block.sum() == 32:
            histogram = histogram * (1 - 32 / 256) + block
            threshold, block = choose_threshold(histogram, block), np.zeros(64)
    return unknown, histogram, block, threshold


def draw_scores(generator: np.random.Generator, count: int) -> Values:
    """Scores of a stream in turns: one mode, two modes, all low, all high."""
    parts = []
    while sum(map(len, parts)) < count:
        share, size = generator.choice([0.0, 0.1, 0.5, 1.0]), int(generator.integers(20, 200))
        low, high = generator.beta(4, 8, size), generator.beta(20, 5, size)
        parts.append(np.where(generator.random(size) < share, low, high))
    scores = np.concatenate(parts)[:count]
    scores[generator.random(count) < 0.01] = np.nan
    return scores


def test_score_is_that_of_its_definition() -> None:
    logits = np.random.default_rng(0).normal(0, 4, (50, 7))
    expected = [1 - math.exp(-(max(row) - sum(row) / 7) / 4) for row in logits.tolist()]
    found = score_known(torch.tensor(logits))
    assert np.allclose(found.numpy(), expected, atol=1e-12)
    assert score_known(torch.zeros(1, 5)).item() == 0
    assert 0 <= score_known(torch.tensor([[1e4, -1e4]])).item() <= 1


@pytest.mark.parametrize("seed", range(3))
def test_whole_streams_are_judged_as_image_by_image(seed: int) -> None:
    """Three streams in batches of any size and mixture."""
    generator = np.random.default_rng(seed)
    streams = [draw_scores(generator, 700) for _ in range(3)]
    start = begin_scores(torch.zeros((), dtype=torch.float64))
    state = {key: torch.stack([value] * 3) for key, value in start.items()}
    found: list[list[bool]] = [[], [], []]
    places = [0, 0, 0]
    while any(place < 700 for place in places):
        ids = [k for k in range(3) for _ in range(int(generator.integers(0, 90)))]
        generator.shuffle(ids)
        taken: list[int] = []
        scores = []
        for k in ids:
            if places[k] < 700:
                taken.append(k)
                scores.append(streams[k][places[k]])
                places[k] += 1
        if not taken:
            continue
        active, index = torch.unique(torch.tensor(taken), return_inverse=True)
        rows = {key: value[active] for key, value in state.items()}
        unknown, new = judge(torch.tensor(scores, dtype=torch.float64), rows, Streams(active, index))
        for key, value in new.items():
            state[key][active] = value
        for k, one in zip(taken, unknown.tolist(), strict=True):
            found[k].append(one)
    for k in range(3):
        unknown, histogram, block, threshold = judge_alone(streams[k])
        assert found[k] == unknown
        assert np.array_equal(state["known_scores"][k].numpy(), histogram)
        assert np.array_equal(state["known_block"][k].numpy(), block)
        assert state["known_threshold"][k].item() == threshold
    assert any(any(one) for one in found)


def test_an_upper_mode_that_has_ended_is_none() -> None:
    """Clear images before a camera went bad do not make the bad ones unknown."""
    clear, bad = torch.zeros(1, 64), torch.zeros(1, 64)
    clear[0, 52], bad[0, 26] = 100, 32
    assert find_threshold(clear + bad, bad).item() == pytest.approx(0.3)
    mixed = torch.zeros(1, 64)
    mixed[0, 52], mixed[0, 26] = 24, 8
    assert 27 / 64 <= find_threshold(clear + mixed, mixed).item() <= 52 / 64


def make_stream(count: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *small_world.SHAPE, generator=generator, dtype=torch.float64)


def find_median() -> float:
    """A threshold that half of the images are below."""
    with torch.no_grad():
        return score_known(small_world.make_classifier()(make_stream(60))).median().item()


@pytest.mark.parametrize("spec", SPECS)
def test_unknown_images_teach_nothing(spec: str) -> None:
    """Known images get what they get without the others, and unknown ones the answer of the frozen model."""
    limit, images, ids = find_median(), make_stream(60), torch.arange(60) % 2
    judging = lmr.create(spec, small_world.make_classifier(), streams=2, unknown=limit)
    plain = lmr.create(spec, small_world.make_classifier(), streams=2)
    for part in range(0, 60, 15):
        given, rows = images[part : part + 15], ids[part : part + 15]
        with torch.no_grad():
            frozen = plain.classifier(given)
        scores = score_known(frozen)
        known = scores >= limit
        before = judging.predict(given, rows)
        assert before.unknown is not None
        assert before.unknown.equal(~known)
        answer = judging.step(given, rows)
        assert answer.unknown is not None
        assert answer.unknown.equal(~known)
        assert answer.known.equal(scores)
        assert answer.logits[~known].equal(frozen[~known])
        assert [name is None for name in answer.names] == (~known).tolist()
        assert torch.allclose(answer.logits[known], plain.step(given[known], rows[known]).logits, atol=1e-9)
    assert judging.state.keys() == plain.state.keys()
    for key, value in plain.state.items():
        assert torch.allclose(judging.state[key].double(), value.double(), atol=1e-9), key
    assert 0 < int(judging.state["predicted"].sum()) < 60


@pytest.mark.parametrize("threshold", ["auto", None])
def test_the_chosen_threshold_does_not_depend_on_batches(threshold: Any) -> None:
    """Steady answers the same in any batches, with a threshold as without one."""
    images = make_stream(200)
    results = []
    for size in (200, 7):
        method = lmr.create("steady(prior='uniform')", small_world.make_classifier(), unknown=threshold)
        answers = [method.step(part) for part in images.split(size)]
        results.append((torch.cat([one.logits for one in answers]), [name for one in answers for name in one.names]))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-9)
    assert results[0][1] == results[1][1]


def test_streams_whose_images_are_all_unknown_stay_as_they_are() -> None:
    method = lmr.create("lmr", small_world.make_classifier(), streams=2, unknown=1.0)
    before = {key: value.clone() for key, value in method.state.items()}
    answer = method.step(make_stream(6), [0, 0, 1, 1, 1, 0])
    assert answer.names == [None] * 6
    assert "unknown" in repr(answer)
    assert answer.info["stepped"] is False
    assert answer.info["streams"][1]["stepped"] is False
    assert all(value.equal(before[key]) for key, value in method.state.items())
    half = lmr.create("lmr", small_world.make_classifier(), streams=2, unknown=find_median())
    scores = half.predict(make_stream(40), [0] * 40).known
    order = scores.argsort()
    info = half.step(make_stream(40)[order[[0, 1, -1, -2]]], [0, 0, 1, 1]).info
    assert info["streams"][0] == {"stepped": False, "finite": True}
    assert "drift" in info["streams"][1]


def test_a_run_is_resumed_and_a_state_fits_with_and_without_a_threshold(tmp_path: Path) -> None:
    images = make_stream(120)
    whole = lmr.create("lmr", small_world.make_classifier(), unknown="auto")
    for part in images.split(20):
        expected = whole.step(part)
    first = lmr.create("lmr", small_world.make_classifier(), unknown="auto")
    for part in images[:60].split(20):
        first.step(part)
    first.save(tmp_path / "state")
    again = lmr.create("lmr", small_world.make_classifier(), unknown="auto")
    again.load(tmp_path / "state")
    for part in images[60:].split(20):
        found = again.step(part)
    assert found.logits.equal(expected.logits)
    assert found.known.equal(expected.known)
    assert all(again.state[key].equal(value) for key, value in whole.state.items())
    without = lmr.create("lmr", small_world.make_classifier())
    without.load(tmp_path / "state")
    without.save(tmp_path / "plain")
    assert not any(key.startswith("known") for key in without.state)
    again.load(tmp_path / "plain")  # begins to count scores
    assert again.state["known_scores"].sum() == 0
    watched = lmr.Watched(lmr.create("lmr", small_world.make_classifier(), unknown="auto"))
    watched.step(images[:20])
    watched.reset()  # keeps what it undoes
    watched.save(tmp_path / "watched")
    other = lmr.Watched(lmr.create("lmr", small_world.make_classifier()))
    other.load(tmp_path / "watched")
    other.undo()
    damaged = again.state_dict()
    damaged["tensors"]["known_scores"] = damaged["tensors"]["known_scores"] - 1
    with pytest.raises(lmr.LmrError, match="known_scores"):
        again.load_state_dict(damaged)


def test_other_classes_keep_the_scores() -> None:
    backbone = lmr.load("pocket")
    method = lmr.create("lmr", backbone.classifier(["red ring", "blue star"]), unknown="auto")
    method.step(torch.randn(40, 3, 32, 32))
    wider = method.with_classes(backbone.classifier(["red ring", "green heart"]))
    assert wider.unknown == "auto"
    assert wider.state["known_scores"].equal(method.state["known_scores"])


def test_watched_streams_that_do_not_adapt_are_judged_too() -> None:
    limit, images = find_median(), make_stream(12)
    ids = [0, 1, 2] * 4
    watched = lmr.Watched(lmr.create("lmr", small_world.make_classifier(), streams=3, unknown=limit))
    watched.pause(0)
    watched.watches[2] = watched.watches[0]
    expected = watched.method.predict(images, ids).unknown
    for found in (watched.predict(images, ids), watched.step(images, ids)):
        assert found.unknown is not None
        assert expected is not None
        assert found.unknown.equal(expected)
        assert found.logits.shape == (12, small_world.CLASSES)


@pytest.mark.parametrize("wrong", ["often", 1.5, -0.1, True, float("nan")])
def test_a_threshold_is_a_share_or_auto(wrong: Any) -> None:
    with pytest.raises(lmr.LmrError, match="from 0 to 1, or auto"):
        lmr.create("lmr", small_world.make_classifier(), unknown=wrong)
