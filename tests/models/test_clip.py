"""CLIP in our towers against transformers' own: features, adaptation, precision, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

import checkpoint_maker as maker
import lmr
from lmr.models.clip import Clip
from lmr.models.transformers_clip import build_transformers_clip


@pytest.fixture(scope="module", params=["quick_gelu", "gelu"])
def model(request: pytest.FixtureRequest) -> Any:
    return maker.make_model(request.param)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the layout of the hub."""
    return maker.write_huggingface(maker.make_model(), tmp_path_factory.mktemp("whole"))


def test_features_are_those_of_transformers(model: Any, tmp_path: Path) -> None:
    """Raw features of both towers, and the way back: the model that is written has the same weights."""
    backbone = lmr.load(maker.write_huggingface(model, tmp_path))
    assert isinstance(backbone, Clip)
    images, tokens, end = maker.make_inputs(model)
    for other in (model, build_transformers_clip(backbone.encoder, backbone.text, maker.WORDS - 1, {})):
        seen, read = maker.expect_features(other)
        torch.testing.assert_close(backbone.encoder(images), seen, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(backbone.text(tokens, end), read, atol=1e-5, rtol=1e-5)
    assert backbone.logit_scale == pytest.approx(float(model.logit_scale.exp()), rel=1e-6)


def test_text_side_cuts_every_part_to_its_longest(whole: Path) -> None:
    backbone = lmr.load(whole)
    texts = ["dog", "a cat", "a photo of a very long dog in the grass", "a red fish"]
    side = backbone.text_side(texts)
    lengths: list[int] = []
    hook = side.tower.register_forward_pre_hook(lambda _, given: lengths.append(given[0].shape[1]))
    expected = backbone.encode_text(texts)
    for chunk in (1, 2, 4):
        torch.testing.assert_close(side.all_prototypes(chunk), expected, atol=1e-6, rtol=0)
    hook.remove()
    tokens = [len(ids) for ids in AutoTokenizer.from_pretrained(whole)(texts)["input_ids"]]
    dog, cat, long, fish = (min(count, maker.CONTEXT) for count in tokens)
    assert lengths == [long, dog, cat, long, fish, max(dog, cat), long, long]


# Adaptation, precision, modes.


@pytest.mark.parametrize("spec", ["lmr", "tent", "batclip"])
def test_loaded_model_adapts(spec: str, whole: Path) -> None:
    """The same stream through the loaded model and, for LMR, through transformers' image tower by autograd."""
    backbone = lmr.load(whole)
    clip = backbone.classifier(["cat", "dog", "red fish", "tall tree"], cache=False)
    method = lmr.create(spec, clip)
    images = [torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    answers = [method.step(batch).logits for batch in images]
    assert all(answer.isfinite().all() for answer in answers)
    assert not torch.equal(method.predict(images[0]).logits, lmr.create("zeroshot", clip).predict(images[0]).logits)
    if spec != "lmr":
        return

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = maker.make_model()

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = self.model.visual_projection(self.model.vision_model(pixel_values=x).pooler_output)
            return features

    plain = lmr.create(spec, lmr.ZeroShot(Plain(), clip.prototypes, clip.logit_scale))
    for batch, answer in zip(images, answers, strict=True):
        torch.testing.assert_close(plain.step(batch).logits, answer, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precision_of_frozen_weights(dtype: torch.dtype, whole: Path) -> None:
    from PIL import Image

    exact = lmr.load(whole)
    backbone = lmr.load(whole, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    for ours, full in ((backbone.encoder, exact.encoder), (backbone.text, exact.text)):
        for key, value in ours.state_dict().items():
            kept = wide if "ln_" in key else dtype
            assert value.dtype == kept, key
            torch.testing.assert_close(value, full.state_dict()[key].to(kept), atol=0, rtol=0 if "ln_" in key else 1e-6)
    image = backbone.preprocess(Image.new("RGB", (50, 40), (200, 30, 90)))
    assert image.dtype == dtype
    assert backbone.preprocess(torch.zeros(2, 9, 9, 3, dtype=torch.uint8)).dtype == dtype
    texts = ["a cat", "a dog"]
    assert backbone.encode_text(texts).dtype == wide
    coarse = {torch.bfloat16: 0.1, torch.float16: 0.01, torch.float64: 1e-6}[dtype]
    assert (backbone.encode_text(texts) - exact.encode_text(texts)).abs().max() < coarse
    ours = exact.classifier(texts, cache=False).features(image[None].float())
    features = backbone.classifier(texts, cache=False).features(image[None])
    torch.testing.assert_close(features.to(ours), ours, atol=coarse, rtol=0)
