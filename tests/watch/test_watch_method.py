"""lmr.watch: its arguments do what they say."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import lmr
import small_world
from lmr.bench.flops import count_forwards


def test_one_image_in_sixteen_is_compared_while_nothing_is_suspected() -> None:
    clip = small_world.make_classifier()
    encoded = []
    clip.encoder.register_forward_pre_hook(lambda _, given: encoded.append(len(given[0])))
    plain, watched = lmr.create("lmr", clip), lmr.watch(lmr.create("lmr", clip), canaries=0)
    counts = []
    for method in (plain, watched):
        encoded.clear()
        for batch in range(12):
            method.step(small_world.make_images(batch))
        counts.append(sum(encoded))
    assert counts[1] - counts[0] == 12 * 8 / 16
    assert watched.signals().compared == 6
    passes = watched.count_passes()
    assert passes is not None
    assert passes.forwards == 2 + 1 / 16


@pytest.mark.parametrize(
    ("spec", "every"), [("tda", 32), ("zeroshot", 32), ("lmr(pmr=False)", 32), ("tent", 16), ("lmr(share=0.5)", 16)]
)
def test_fewer_images_are_compared_where_a_step_is_one_forward(spec: str, every: int) -> None:
    method = lmr.create(spec, small_world.make_classifier())
    plain = method.count_passes()
    assert plain is not None
    for given, expected in ((None, every), (4, 4)):
        watched = lmr.watch(method, every=given, canaries=0)
        passes = watched.count_passes()
        assert passes is not None
        assert passes.forwards - plain.forwards == pytest.approx(1 / expected)
        for batch in range(8):
            watched.step(small_world.make_images(batch))
        assert watched.signals().compared == 64 / expected


@pytest.mark.parametrize("spec", ["lmr", "lmr(blocks=1)", "tda"])
def test_comparison_is_a_whole_forward(spec: str) -> None:
    method = lmr.create(spec, lmr.load("pocket").classifier(["red ring", "blue star"]))
    plain, watched = count_forwards(method, 8), count_forwards(lmr.watch(method, every=8), 8)
    assert plain is not None
    assert watched == pytest.approx(plain + 1 / 8)


def test_reset_every_is_the_simplest_guard() -> None:
    watched = lmr.watch(lmr.create("lmr", small_world.make_classifier()), reset_every=3, signals=False)
    plain = lmr.create("lmr", small_world.make_classifier())
    for batch in range(8):
        if batch % 3 == 0:
            plain.reset()
        images = small_world.make_images(batch)
        assert torch.equal(watched.step(images).logits, plain.step(images).logits)
    assert watched.signals().compared == 0
    assert watched.events == []


def test_a_watch_is_not_watched() -> None:
    with pytest.raises(lmr.LmrError, match="not watched yet"):
        lmr.watch(lmr.watch(lmr.create("lmr", small_world.make_classifier())))
    with pytest.raises(lmr.LmrError, match="not watched yet, got str"):
        lmr.watch("lmr")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["on", "report"])
def test_reset_every_leaves_paused_streams_and_reports_alone(mode: Literal["on", "report"]) -> None:
    watched = lmr.watch(lmr.create("lmr", small_world.make_classifier()), mode=mode, reset_every=2)
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
