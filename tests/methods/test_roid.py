"""ROID against plain autograd, sample by sample, whole streams in float64; and the base that CMF shares."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lmr
import norm_reference as plain
from seeded_streams import check_seed
from weighted_reference import SCALE, Reference, change


def follow(spec: dict[str, Any], sizes: list[int], batch: int | None = None) -> list[dict[str, Any]]:
    """A stream of batches of these sizes; ``batch`` is the batch size that the reference divides by."""
    _, _, images = plain.make_problem()
    method: Any = lmr.create("roid", plain.make_method("zeroshot", SCALE).classifier, preset="default", **spec)
    method.jitter = change
    reference, events = Reference(**spec | {"batch": batch or spec.get("batch")}), []
    for part in images[: sum(sizes)].split(sizes):
        expected, event = reference.step(part)
        answer = method.step(part)
        torch.testing.assert_close(answer.logits, expected, atol=1e-8, rtol=0)
        assert {key: answer.info[key] for key in event} == pytest.approx(event, abs=1e-8)
        plain.compare_norms(method, reference)
        torch.testing.assert_close(method.state["mean"][0], reference.mean, atol=1e-10, rtol=0)
        events.append(event)
    expected = reference.correct(reference.score(images).detach())
    torch.testing.assert_close(method.predict(images).logits, expected, atol=1e-8, rtol=0)
    return events


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"lr": 0.005, "prior_correction": False},
        {"optimizer": "sgd", "lr": 2e-3, "momentum_source": 0.9},
        {"consistency": False, "lr": 0.005},
        {"weighting": False, "lr": 0.005},
        {"batch": 40, "optimizer": "sgd", "lr": 5e-3},
    ],
    ids=str,
)
def test_stream_is_that_of_the_equations(spec: dict[str, Any]) -> None:
    events = follow(spec, [12, 12, 12, 12, 8], batch=spec.get("batch", 12))
    assert events[-1]["drift"] > 1e-4
    assert all(0 < event["diverse"] < 12 for event in events) == spec.get("weighting", True)


def test_loss_is_divided_by_the_largest_batch_so_far() -> None:
    follow({"optimizer": "sgd", "lr": 5e-3}, [12, 5, 5], batch=12)


def test_single_image_is_answered_without_a_step() -> None:
    events = follow({"lr": 0.01}, [1, 1, 12, 1, 12], batch=12)
    assert [event["stepped"] for event in events] == [False, False, True, False, True]


def test_prior_correction_is_said_to_be_ruinous_and_off_in_auto(caplog: pytest.LogCaptureFixture) -> None:
    clip = plain.make_method("zeroshot", SCALE).classifier
    assert lmr.create("roid", clip, preset="default").spec.count("prior_correction=True") == 1
    assert "prior_correction=False" in lmr.create("roid", clip).spec
    assert "prior_correction=False" in lmr.create("roid", clip, preset="clip").spec
    assert lmr.find_method("roid").choose_values(1000) == {}
    assert "ruinous for" in (lmr.find_method("roid").__doc__ or "")


def test_augmentation_is_one_draw_for_a_batch_of_a_stream(tmp_path: Path) -> None:
    check_seed("roid(lr=0.01", 8, tmp_path)


def test_augmentation_gets_the_number_of_the_batch_in_its_stream() -> None:
    _, _, images = plain.make_problem()
    clip = plain.make_method("zeroshot", SCALE).classifier
    many: Any = lmr.create("roid(weighting=False)", clip, preset="default", streams=3)
    seen = []

    def augment(given: Tensor, number: int) -> Tensor:
        seen.append((len(given), number))
        return given

    many.jitter = augment
    for ids in ([0, 0, 2], [2, 2, 2], [2, 0, 0]):
        many.step(images[:3], streams=ids)
    assert seen == [(2, 1), (1, 1), (3, 2), (2, 2), (1, 3)]


def test_inputs_other_than_rgb_images_are_not_augmented_and_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    method = plain.make_method("roid(lr=0.01)", SCALE)
    with caplog.at_level(logging.WARNING):
        for batch in plain.make_problem()[2].split(20):
            method.step(batch)
    assert [record.message for record in caplog.records if "augment" in record.message] == [
        "roid does not augment: the classifier's inputs are not RGB images of a known scale."
    ]
