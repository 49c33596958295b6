"""Other readings of the paper against the slow reference, each with one step of it changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lmr
import lmr_reference as book
from lmr.bench.plans.plan import read_plan
from lmr.bench.running.selection import list_trials
from lmr_problem import SEED, make_images, make_problem

LAB = Path(__file__).parents[2] / "lab"


class BatchLeftOut(book.Reference):
    def aim(self, samples: Sequence[book.Sample]) -> list[float]:
        before = list(self.mass)
        super().aim(samples)
        return [read(self, before[sample.label], sum(before)) for sample in samples]


class NothingLeftOut(book.Reference):
    def aim(self, samples: Sequence[book.Sample]) -> list[float]:
        super().aim(samples)
        return [read(self, self.mass[sample.label], sum(self.mass)) for sample in samples]


class PlainPosterior(book.Reference):
    def correct(self, emitted: Sequence[Sequence[float]]) -> None:
        super().correct([[value - offset for value, offset in zip(row, self.bias, strict=True)] for row in emitted])


class DividedByK(book.Reference):
    def examine(self, logits: Sequence[float]) -> book.Sample:
        sample = super().examine(logits)
        if sample.margin is None:
            return sample
        return replace(sample, margin=sample.margin + math.log(self.negatives / len(sample.negatives)))


def read(reference: book.Reference, own: float, total: float) -> float:
    share = own / (total + reference.eps)
    base = reference.gamma0 - reference.beta * math.log(reference.classes)
    return base - reference.beta * math.log(share + reference.eps)


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("batch_left_out", BatchLeftOut, {}),
        ("nothing_left_out", NothingLeftOut, {}),
        ("plain_posterior", PlainPosterior, {}),
        ("divided_by_k", DividedByK, {"negatives": 9}),
    ],
)
def test_a_reading_is_the_reference_with_one_step_changed(
    name: str, kind: type[book.Reference], values: dict[str, int]
) -> None:
    tower, prototypes, anchors = make_problem()
    words = ", ".join(f"{key}={value}" for key, value in values.items())
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    method = lmr.create(f"{LAB}/readings.py:{name}({words})", clip, preset="default")
    usual = lmr.create(f"lmr({words})", clip, preset="default")
    reference = kind(book.write_out(tower), tower.norms, prototypes, **values)
    apart = 0.0
    for images in make_images(anchors, 53, SEED).split(8):
        answer = method.step(images).logits
        assert (answer - reference.step(images)).abs().max() < 1e-9
        apart = max(apart, (answer - usual.step(images).logits).abs().max().item())
    assert apart > 1e-3


@pytest.mark.usefixtures("own_methods")
def test_momentum_moves_the_norms_where_no_sample_is_confident() -> None:
    tower, prototypes, anchors = make_problem()
    clip = lmr.ZeroShot(tower, prototypes, 100.0)
    method, usual = lmr.create(f"{LAB}/readings.py:momentum_alone", clip), lmr.create("lmr", clip)
    first, *_ = make_images(anchors, 8, SEED).split(8)
    assert torch.equal(method.step(first).logits, usual.step(first).logits)
    for own in (method, usual):
        own.tau = 1 - 1e-9  # nothing is as certain
    before = method.state["norms"].clone()
    method.step(first)
    usual.step(first)
    assert torch.equal(usual.state["norms"], before)
    assert not torch.equal(method.state["norms"], before)


def test_the_grid_has_values_for_every_method_of_the_leaderboard() -> None:
    (trials,) = list_trials([read_plan("leaderboard", {"select": str(LAB / "grid.toml"), "datasets": "photo-c"})])
    assert {entry.spec.partition("(")[0] for part in trials.parts for entry in part.methods} <= set(lmr.list_methods())


@pytest.mark.usefixtures("own_methods")
def test_the_plan_has_every_reading_once_under_the_same_values() -> None:
    (part,) = read_plan(LAB / "readings.toml").parts
    named = {entry.spec.partition("(")[0] for entry in part.methods if entry.file}
    assert named == {"batch_left_out", "nothing_left_out", "plain_posterior", "divided_by_k", "momentum_alone"}
    assert all("gamma0=0.3, beta=3.0" in entry.spec for entry in part.methods if entry.label != "zero-shot")
