"""The library's BITTA against the slow reference beside this file, batch by batch, over whole streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bimodal_reference as book
import lmr


def follow(
    spec: dict[str, Any], batches: list[Tensor], chunk: int = 128, **how: Any
) -> tuple[lmr.Method, Any, list[dict[str, Any]]]:
    """Send one stream through the library and the reference and compare all that comes out."""
    problem = book.make_problem(**how)
    words = ", ".join(f"{key}={value!r}" for key, value in (spec | {"chunk": chunk}).items())
    method = lmr.create(f"bitta({words})", problem.classifier)
    reference = book.BittaReference(problem, **spec)
    assert len(batches) >= 8
    infos = []
    for images in batches:
        answer, (logits, info) = method.step(images), reference.step(images)
        torch.testing.assert_close(answer.logits, logits, atol=1e-6, rtol=0)
        assert answer.info.keys() == info.keys() | {"finite", "top_class_share"}
        for key, value in info.items():
            assert answer.info[key] == pytest.approx(value, abs=1e-6), key
        infos.append(answer.info)
    torch.testing.assert_close(method.state["norms"][0], reference.flat, atol=1e-7, rtol=0)
    ahead = book.make_images(5, seed=99)
    torch.testing.assert_close(method.predict(ahead).logits, reference.answer(ahead), atol=1e-6, rtol=0)
    return method, reference, infos


def cut(count: int, size: int | list[int], **how: Any) -> list[Tensor]:
    return list(book.make_images(count, **how).split(size))


def count(infos: list[dict[str, Any]], key: str) -> list[int]:
    return [info[key] for info in infos]


# Whole streams.


def test_defaults_follow_the_reference() -> None:
    batches = cut(66, 8)
    method, reference, infos = follow({}, batches)
    assert (method.lr, method.optimizer, method.weight_decay) == (1e-3, "adamw", 0.01)
    assert (method.alpha, method.beta, method.high, method.unlearn) == (-3.8e-4, 0.83, 0.1, 1.2)
    assert (method.high_mode, method.features, method.emit) == ("range", "unit", "after")
    # The stream is worth comparing: some samples are Low, some High, some neither, and the last batch falls back.
    assert 0 < infos[0]["low"] < 8
    assert 0 < infos[0]["high"] < 8
    assert all(not set(low) & set(high) for low, high in reference.history[:-1])
    assert len(batches[-1]) == infos[-1]["high"] == 2


@pytest.mark.parametrize(
    "spec",
    [
        {"optimizer": "adam", "lr": 2e-3, "weight_decay": 0.05},
        {"optimizer": "sgd", "lr": 2e-3, "weight_decay": 0.05},
        {"emit": "before"},
        {"features": "raw"},
        {"high_mode": "top_fraction", "high": 0.3},
        {"beta": 0.4, "high": 0.5},
        {"alpha": -0.02, "unlearn": 0.3},
        {"unlearn": 0.0},
    ],
    ids=str,
)
def test_every_switch_follows_the_reference(spec: dict[str, Any]) -> None:
    follow(spec, cut(66, 8, seed=1), chunk=3)


# Selection.


def test_first_batch_fixes_the_shares_for_batches_of_any_size() -> None:
    sizes = [8, 12, 5, 8, 3, 20, 2, 9, 1]
    method, reference, infos = follow({"beta": 0.7, "high": 0.3}, cut(sum(sizes), sizes), chunk=2)
    low, high = infos[0]["low"], infos[0]["high"]
    assert method.state["selection"].tolist() == [[low, high, 8]]
    assert count(infos, "low") == [(size * low // 8) or size for size in sizes]
    assert count(infos, "high") == [(size * high // 8) or size for size in sizes]
    assert any(size * high // 8 == 0 for size in sizes)
    assert float(reference.share_low) == low / 8
    method.reset()
    assert method.state["selection"].tolist() == [[0, 0, 0]]
    other = method.step(book.make_images(10, seed=4))
    assert method.state["selection"].tolist() == [[other.info["low"], other.info["high"], 10]]


def test_shares_that_come_to_nothing_take_all() -> None:
    """No sample is as certain as a thousandth of the largest entropy; none lies above all of the range."""
    batches = cut(64, 8)
    _, _, infos = follow({"alpha": 0.0, "beta": 1e-3, "high": 0.0}, batches, chunk=3)
    assert count(infos, "low") == count(infos, "high") == [8] * 8


def test_answers_without_any_doubt_leave_nothing_to_unlearn() -> None:
    method, _, infos = follow({}, cut(32, 4), scale=1e7)
    assert all(info["stepped"] for info in infos)
    one = lmr.create("bitta(unlearn=0.0)", book.make_problem(scale=1e7).classifier)
    for images in cut(32, 4):
        one.step(images)
    assert torch.equal(one.state["norms"], method.state["norms"])


def test_top_fraction_is_not_one_short() -> None:
    """100 x 0.29 is 28.999999999999996."""
    method = lmr.create("bitta(high_mode='top_fraction', high=0.29)", book.make_problem().classifier)
    assert method.step(book.make_images(100)).info["high"] == 29
    assert method.step(book.make_images(3)).info["high"] == 3


def test_low_and_high_may_be_everything_and_unlearning_still_counts() -> None:
    """With Low = High = all and unlearn = 1, the entropy's gradient cancels but for the share of its weight."""
    images = book.make_images(8)
    losses = {}
    for weight in (0.0, 1.0):
        method = lmr.create(f"bitta(beta=0.0, alpha=0.0, high=0.0, unlearn={weight})", book.make_problem().classifier)
        losses[weight] = method.step(images).info["loss"]
    logits = lmr.create("zeroshot", book.make_problem().classifier).step(images).logits
    mean = sum(book.measure_entropy(row).item() for row in logits) / 8
    assert losses[0.0] - losses[1.0] == pytest.approx(mean, abs=1e-9)


# Emission and cost.


# Precision and trouble.


# What is missing or wrong is said when the method is made.
