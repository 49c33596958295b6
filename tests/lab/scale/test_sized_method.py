"""What is counted without weights is what a method on a real model has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lmr
from lab.scale import sized_method
from lab.scale.sized_method import size_method
from lmr.apps.serve import create_served
from lmr.bench.flops import count_forwards
from lmr.core.classifier import ZeroShot
from lmr.core.errors import LmrError
from lmr.models.towers.architectures import ARCHITECTURES
from lmr.models.towers.image import VisionConfig, VisionTower

CLASSES = 12
TINY = VisionConfig(resolution=16, patch=8, width=16, depth=3, heads=2, features=8, hidden=32)


@pytest.mark.parametrize("spec", ["lmr", "tent", "zeroshot"])
def test_state_is_that_of_a_saved_stream(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ARCHITECTURES["ViT-B-16"][1]
    monkeypatch.setitem(ARCHITECTURES, "tiny", (TINY, text))
    sized = size_method("tiny", spec, CLASSES)
    clip = ZeroShot(VisionTower(TINY), torch.randn(CLASSES, TINY.features), input_shape=(3, 16, 16))
    method = create_served(spec, clip, 3)
    method.step(torch.randn(6, 3, 16, 16), [0, 0, 1, 1, 2, 2])
    path = tmp_path / "state.safetensors"
    method.save(path, [1])
    assert path.stat().st_size == sized.stored_bytes
    assert sized.tensors == {key: value[0].nbytes for key, value in method.state.items()}
    assert sized.trained == method.trainable
    assert sized.flops / sized.forward_flops == pytest.approx(count_forwards(method, 64))


@pytest.mark.parametrize("images", [1, 2, 16])
def test_a_share_is_of_the_images_of_a_request(images: int) -> None:
    clip = lmr.load("pocket").classifier(["red ring", "blue star"])
    sized = size_method("pocket", "lmr(share=0.25)", 2, images=images)
    expected = count_forwards(create_served("lmr(share=0.25)", clip, 1), images)
    assert sized.flops / sized.forward_flops == pytest.approx(expected)


def test_vit_b_16_has_the_known_size() -> None:
    sized = size_method("ViT-B-16", "lmr", 1000)
    assert sized.trained == 39_936
    assert sized.moments == 2 * 39_936
    assert sized.memory_bytes == 4 * (3 * 39_936 + 3 * 1000) + 8 * 1000 + 3 * 8
    assert sized.watch_bytes == 4 * sized.memory_bytes  # four snapshots
    assert size_method("ViT-B/16", "lmr", 1000).stored_bytes == sized.stored_bytes
    fewer = size_method("ViT-B-16", "lmr", 1000, learning=0.0)
    assert fewer.flops == pytest.approx(fewer.forward_flops)
    half = size_method("ViT-B-16", "lmr", 1000, learning=0.5)
    assert half.passes.backwards == pytest.approx(sized.passes.backwards / 2)


def test_embedded_models_are_counted_as_they_are() -> None:
    clip = lmr.load("pocket").classifier(["a", "i"])  # names of one letter, as "0" and "1" have one
    method = create_served("lmr", clip, 1)
    sized = size_method("pocket", "lmr", 2)
    assert sized.spec == method.spec
    assert sized.stored_bytes == len(method.dump([0]))


@pytest.mark.parametrize(
    ("model", "spec", "message"),
    [
        ("ViT-B-17", "lmr", "There is no architecture 'ViT-B-17'"),
        ("ViT-B-16", "ecalp", "grows"),
        ("ViT-B-16", "batclip", "batclip adapts the text tower"),
        ("ViT-B-16", "lrm", "lmr"),
    ],
)
def test_what_cannot_be_served_is_refused(model: str, spec: str, message: str) -> None:
    with pytest.raises(LmrError, match=message):
        size_method(model, spec, CLASSES)


def test_no_weights_are_allocated() -> None:
    full, lean = sized_method._build_towers("ViT-e-14")
    assert {parameter.device.type for parameter in full.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in lean.parameters()) < 1e6
