"""lmr.watch: its arguments do what they say."""

from __future__ import annotations

import pytest
import small_world
import torch

import lmr


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
