"""ZERO against a count in plain Python, ties included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import lmr
from lmr.methods.zero import count_votes
from pocket import load_pocket
from view_problem import make_view_problem, make_views

SIZES, VIEWS = (4, 3, 5), 11


def vote(logits: NDArray[np.float64], keep: float) -> tuple[list[float], str]:
    """Votes for each class, and what decided."""

    def entropy(row: NDArray[np.float64]) -> float:
        shares = np.exp(row - row.max())
        shares /= shares.sum()
        return -sum(p * math.log(p) for p in shares if p > 0)

    order = sorted(range(len(logits)), key=lambda k: entropy(logits[k]))
    kept = max(1, int(len(logits) * keep))
    votes = [0.0] * logits.shape[1]
    for k in order[:kept]:
        votes[int(logits[k].argmax())] += 1
    tied = [c for c, count in enumerate(votes) if count == max(votes)]
    if len(tied) == 1 or kept == len(order):
        return votes, "votes"
    for k in order[kept:]:
        if int(logits[k].argmax()) in tied:
            votes[int(logits[k].argmax())] += 1
            return votes, "a later view"
    votes[max(tied, key=lambda c: logits[order[kept]][c])] += 1
    return votes, "a logit"


@pytest.mark.parametrize("keep", [0.3, 0.1, 0.6, 1.0])
def test_stream_is_that_of_the_reference(keep: float) -> None:
    problem = make_view_problem()
    method = lmr.create(f"zero(keep={keep})", problem.classifier)
    with torch.no_grad():
        texts = problem.encode_texts(problem.context).numpy()
    for batch in range(len(SIZES)):
        views = make_views(batch, SIZES, VIEWS)
        expected = [vote(problem.scale * problem.encode_images(own).numpy() @ texts.T, keep)[0] for own in views]
        torch.testing.assert_close(method.step(views).logits, torch.tensor(expected, dtype=torch.float64))


def test_every_way_to_decide_is_that_of_the_reference() -> None:
    generator = np.random.default_rng(0)
    ways = set()
    for _ in range(300):
        logits = 3 * generator.normal(size=(7, 9))
        logits[3:, generator.integers(9)] += 8  # the views that are not kept may all choose another class
        logits[:3] *= 4
        expected, way = vote(logits, 0.45)
        ways.add(way)
        assert count_votes(torch.from_numpy(logits), 3).tolist() == expected
    assert ways == {"votes", "a later view", "a logit"}


def test_own_views_are_made_where_none_are_given() -> None:
    clip = load_pocket().classifier(["red ring", "blue star", "plain cross"])
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    one, other, third = (lmr.create(f"zero(views=20, seed={seed})", clip) for seed in (0, 0, 1))
    assert one.step(images).logits.sum(1).tolist() == pytest.approx([6, 6, 6], abs=1)
    assert torch.equal(one.step(images).logits, (other.step(images), other.step(images))[1].logits)
    assert third.spec != one.spec
