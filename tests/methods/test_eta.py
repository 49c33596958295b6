"""What ETA does where nothing is certain or diverse; test_eata.py compares whole streams with a reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain


def make_method(spec: str) -> tuple[lmr.Method, Tensor]:
    return plain.make_method(spec), plain.make_problem(count=91)[2]


def sort_images(method: lmr.Method, images: Tensor) -> tuple[Tensor, Tensor]:
    """Those with entropy above and below the border before anything is learned."""
    logits = method.predict(images).logits
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    border = 0.4 * math.log(plain.CLASSES)
    return images[entropy > border + 0.05], images[entropy < border - 0.05]


def keep(method: lmr.Method) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in method.state.items() if key != "predicted"}


def test_nothing_certain_means_no_step_and_no_average() -> None:
    """And the first batch that has something certain still meets no diversity filter, however late it comes."""
    method, images = make_method("eta(diversity=0.0)")
    doubtful, clear = sort_images(method, images)
    assert min(len(doubtful), len(clear)) >= 12
    before = keep(method)
    for batch in doubtful[:12].split(4):
        expected = method.predict(batch).logits
        answer = method.step(batch)
        assert torch.equal(answer.logits, expected)
        assert [answer.info[key] for key in ("certain", "diverse", "loss", "stepped", "drift")] == [0, 0, 0, False, 0]
        assert all(torch.equal(method.state[key], value) for key, value in before.items())
    first = method.step(torch.cat([clear[:5], doubtful[:2]]))
    assert (first.info["certain"], first.info["diverse"], first.info["stepped"]) == (5, 5, True)
    assert first.info["drift"] > 0
    torch.testing.assert_close(method.state["average"][0], first.probabilities[:5].mean(0))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_nothing_diverse_means_no_step_of_any_kind(optimizer: str) -> None:
    """Not of momentum, not of weight decay; the average stays as well."""
    method, images = make_method(f"eta(diversity=0.0, weight_decay=0.1, optimizer={optimizer!r})")
    _, clear = sort_images(method, images)
    assert method.step(clear[:6]).info["stepped"] is True
    before, expected = keep(method), method.predict(clear[6:12]).logits
    answer = method.step(clear[6:12])
    assert (answer.info["certain"], answer.info["diverse"], answer.info["stepped"]) == (6, 0, False)
    assert answer.info["loss"] == 0
    assert torch.equal(answer.logits, expected)
    assert all(torch.equal(method.state[key], value) for key, value in before.items())
    assert before["steps"].item() == 1


def test_both_borders_are_strict() -> None:
    """On a scale where every answer is one class and nothing else, entropy and cosine are 0 to the last bit."""
    tower, prototypes, images = plain.make_problem(count=91)
    clip = lmr.ZeroShot(tower, prototypes, 1e6)
    labels = clip.cosines(clip.features(images)).argmax(1)
    one, other = images[labels == labels[0]][:1], images[labels != labels[0]][:1]
    assert lmr.create("eta(margin=0.0)", clip).step(one).info["certain"] == 0
    method = lmr.create("eta(diversity=0.0)", clip)
    assert method.step(one).info["stepped"] is True
    answer = method.step(other)
    assert torch.equal((answer.probabilities * method.state["average"]).sum(), torch.zeros(()).double())
    assert (answer.info["certain"], answer.info["diverse"]) == (1, 0)
