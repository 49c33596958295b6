"""Scores against their definition, and what unknown images do to a method."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import lmr
import small_world
from lmr.core.known import score_known

SPECS = ("lmr", "steady", "steady(prior='uniform')", "tent", "zeroshot")


def test_score_is_that_of_its_definition() -> None:
    logits = np.random.default_rng(0).normal(0, 4, (50, 7))
    expected = [1 - math.exp(-(max(row) - sum(row) / 7) / 4) for row in logits.tolist()]
    found = score_known(torch.tensor(logits))
    assert np.allclose(found.numpy(), expected, atol=1e-12)
    assert score_known(torch.zeros(1, 5)).item() == 0
    assert 0 <= score_known(torch.tensor([[1e4, -1e4]])).item() <= 1


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
