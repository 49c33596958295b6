"""What a step costs in plain forwards, against sums by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lmr
from lmr.bench.flops import count_comparison, count_forwards, count_image, count_text
from lmr.core.classifier import ZeroShot
from lmr.models.towers.image import VisionTower


@pytest.fixture(scope="module")
def clip() -> ZeroShot:
    return lmr.load("pocket").classifier(["red star", "blue ring", "green square"], ["a {}"])


def test_our_tower(clip: ZeroShot) -> None:
    tower = clip.encoder
    assert isinstance(tower, VisionTower)
    image, last, seen = count_image(tower), count_image(tower, 2), count_comparison(tower.config.features, 3)
    one = image.forward + seen.forward
    expected = {
        "zeroshot": one,
        "lmr": 2 * one + image.backward + seen.backward,
        "lmr(share=0.25)": 1.25 * one + 0.25 * (image.backward + seen.backward),
        "lmr(share=0.25, emit='before')": one + 0.25 * (image.backward + seen.backward),
        "lmr(blocks=2)": one + last.forward + seen.forward + last.backward + seen.backward,
        "lmr(blocks=2, share=0.5)": one + 0.5 * (last.forward + seen.forward + last.backward + seen.backward),
    }
    for spec, flops in expected.items():
        assert count_forwards(lmr.create(spec, clip), 64) == pytest.approx(flops / one), spec
    half = count_forwards(lmr.create("lmr(share=0.5)", clip), 64, past=0.5)
    assert half == pytest.approx((1.5 * one + 0.25 * (image.backward + seen.backward)) / one)
    assert count_forwards(lmr.create("lmr", clip), 64, past=0.0) == pytest.approx(1)


def test_prompts_are_shared_by_the_batch(clip: ZeroShot) -> None:
    assert clip.text is not None
    assert clip.text.tokens is not None
    tower = clip.encoder
    assert isinstance(tower, VisionTower)
    image, seen = count_image(tower), count_comparison(tower.config.features, 3)
    prompt = count_text(clip.text.tower.config, clip.text.tokens)  # type: ignore[arg-type]
    alone = image.forward + image.backward + seen.forward + seen.backward
    expected = (alone + 3 * (prompt.forward + prompt.backward) / 16) / (image.forward + seen.forward)
    assert count_forwards(lmr.create("batclip", clip), 16) == pytest.approx(expected)


def test_a_module_that_is_not_ours() -> None:
    blocks = nn.Sequential(*(nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 5)) for _ in range(4)))
    clip = ZeroShot(blocks, torch.randn(3, 5))
    costs = {"lmr": 3, "tent": 2, "lmr(share=0.25)": 1.5, "lmr(blocks=1)": 2.25, "lmr(blocks=9)": 3}
    for spec, expected in costs.items():
        assert count_forwards(lmr.create(spec, clip), 8) == expected, spec
