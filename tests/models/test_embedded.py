"""The embedded model: its towers by hand, its words, its file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import lmr
from lab.train.photo import PhotoRecipe
from lab.train.photo_texts import CONTEXT, WORDS
from lab.train.photo_texts import NAMES as PHOTO_NAMES
from lmr.core.norms import NormBank
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.models.embedded import PHOTO, Embedded
from lmr.models.tokenizers import WordTokenizer
from lmr.models.towers.stem import StemTower
from lmr.models.towers.text import TextTower
from tower_reference import normalise, run_block

tokenize = WordTokenizer("photo", WORDS, PHOTO_NAMES)
NAMES = ["maple tree", "aquarium fish", "cat"]


def read_metadata(path: Path) -> dict[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return dict(file.metadata())


@pytest.fixture(scope="module")
def photo() -> Embedded:
    return Embedded()


@pytest.fixture(scope="module")
def photographs(photo: Embedded) -> Tensor:
    return photo.preprocess(torch.from_numpy(np.stack(Photographs().read("clean", 0, range(7)))))


# The towers.


@pytest.fixture(scope="module")
def text_tower() -> TextTower:
    torch.manual_seed(1)
    tower = TextTower(PhotoRecipe().sizes.text).double().eval().requires_grad_(False)
    for parameter in tower.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return tower


def test_text_tower_is_the_plain_formula(text_tower: TextTower) -> None:
    tokens, end = tokenize(["a photo of a cat", "aquarium fish", "a ship"], CONTEXT)
    features = text_tower(tokens, end)
    for row in range(3):
        length = int(end[row]) + 1  # what comes after the end does not exist
        x = text_tower.words.weight[tokens[row, :length]] + text_tower.positions[:length]
        for block in text_tower.blocks:
            x = run_block(x, block, causal=True)
        expected = normalise(x[-1], text_tower.ln_final) @ text_tower.projection
        torch.testing.assert_close(features[row], expected, rtol=0, atol=1e-10)


def test_text_features_do_not_depend_on_the_set(photo: Embedded) -> None:
    texts = ["cat", "a blurry photo of a large aquarium fish", "small ship"]
    together = photo.encode_text(texts)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(3))
    for row, text in enumerate(texts):
        torch.testing.assert_close(photo.encode_text([text])[0], together[row], rtol=0, atol=1e-5)
    assert not together.requires_grad


# Words.


# The classifier.


def test_ensemble_is_the_mean_of_unit_features(photo: Embedded) -> None:
    templates = ["a photo of a {}.", "a dark picture of the {}", "the {}"]
    clip = photo.classifier(NAMES, templates)
    for c, name in enumerate(NAMES):
        total = torch.zeros(clip.prototypes.shape[1])
        for template in templates:
            feature = photo.encode_text([template.replace("{}", name)])[0]
            total += feature / feature.norm()
        torch.testing.assert_close(clip.prototypes[c], total / total.norm(), rtol=0, atol=1e-5)
    assert clip.names == tuple(NAMES)
    assert clip.logit_scale == photo.logit_scale
    assert clip.input_shape == photo.input_shape == (3, 32, 32)
    assert clip.encoder is photo.encoder


# Preprocessing.


# The file.


CIFAR10 = read_list("cifar10")


# The image tower, by hand.


def convolve(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """A 3x3 convolution of one image [c, h, w] with a border of zeros, as a sum over the nine places of its kernel."""
    _, height, width = x.shape
    framed = torch.zeros(len(x), height + 2, width + 2, dtype=x.dtype)
    framed[:, 1:-1, 1:-1] = x
    out = bias[:, None, None].repeat(1, height, width)
    for row in range(3):
        for column in range(3):
            seen = framed[:, row : row + height, column : column + width]
            out = out + torch.einsum("oc,chw->ohw", weight[:, :, row, column], seen)
    return out[:, ::stride, ::stride]


def embed(image: Tensor, stem: Any) -> Tensor:
    """The tokens [16, width] of one image."""
    plan = [(1, "relu"), (2, "relu"), (1, "residual"), (2, "relu"), (1, "residual"), (2, "plain")]
    x = image
    for layer, (stride, ending) in zip(stem, plan, strict=True):
        y = convolve(x, layer.conv.weight, layer.conv.bias, stride)
        x = y if ending == "plain" else y.clamp(min=0) + (x if ending == "residual" else 0)
    return torch.stack([x[:, row, column] for row in range(x.shape[1]) for column in range(x.shape[2])])


def encode(image: Tensor, tower: Any) -> Tensor:
    x = torch.cat([tower.class_token[None], embed(image, tower.patches)]) + tower.positions
    x = normalise(x, tower.ln_pre)
    for block in tower.blocks:
        x = run_block(x, block, causal=False)
    return normalise(x[0], tower.ln_post) @ tower.projection


def test_photo_image_tower_is_the_plain_formula(photo: Embedded, photographs: Tensor) -> None:
    tower: Any = copy.deepcopy(photo.encoder).double()
    photographs = photographs[:3].double()
    with torch.no_grad():
        expected = torch.stack([encode(image, tower) for image in photographs])
        torch.testing.assert_close(tower(photographs), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("per_image", [False, True])
def test_gradient_to_the_norms_is_that_of_the_plain_formula(
    per_image: bool, photo: Embedded, photographs: Tensor
) -> None:
    tower: Any = copy.deepcopy(photo.encoder).double()
    photographs = photographs[:4].double()
    toward = torch.randn(4, tower.config.features, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norms = [module for module in tower.modules() if isinstance(module, nn.LayerNorm)]
    plain = [parameter.requires_grad_() for norm in norms for parameter in (norm.weight, norm.bias)]
    features = torch.stack([encode(image, tower) for image in photographs])
    expected = torch.cat([grad.flatten() for grad in torch.autograd.grad((features * toward).sum(), plain)])
    bank = NormBank(tower)
    rows = bank.start.repeat(4 if per_image else 1, 1).requires_grad_()
    with bank.serve(rows, torch.arange(4)):
        found = torch.autograd.grad((tower(photographs) * toward).sum(), rows)[0].sum(0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["lmr", "mint", "tent", "batclip", "watt"])
def test_passes_of_a_step_share_the_tokens(name: str, photo: Embedded, photographs: Tensor) -> None:
    """And the answers are those of a tower that embeds in every pass."""
    clip = photo.classifier(CIFAR10)
    clip.logit_scale *= 3  # so that every method finds photographs it trusts enough
    one, other = lmr.create(name, clip), lmr.create(name, clip)
    for batch in (photographs[:4], photographs[3:]):
        calls: list[int] = []
        hook = photo.encoder.patches.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found = one.step(batch)
        hook.remove()
        assert len(calls) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StemTower, "slow_to_embed", False)
            torch.testing.assert_close(found.logits, other.step(batch).logits, rtol=0, atol=1e-3)


def test_photo_features_do_not_depend_on_the_batch(photo: Embedded, photographs: Tensor) -> None:
    with torch.no_grad():
        whole = photo.encoder(photographs)
        for first, last in ((0, 1), (3, 4), (2, 7)):
            torch.testing.assert_close(photo.encoder(photographs[first:last]), whole[first:last], rtol=0, atol=2e-5)


def test_tokens_do_not_depend_on_the_batch(photo: Embedded) -> None:
    images = torch.randn(33, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    whole = photo.encoder.embed(images)
    for count in (2, 16, 17, 33):
        assert torch.equal(photo.encoder.embed(images[:count]), whole[:count])
    torch.testing.assert_close(photo.encoder.embed(images[:1]), whole[:1], rtol=0, atol=1e-4)


# What it knows.


def test_it_knows_the_names_of_both_sets(photo: Embedded) -> None:
    assert photo.tokenizer.names == (*read_list("cifar10"), *read_list("cifar100"))
    features = photo.encode_text([f"a photo of a {name}." for name in photo.tokenizer.names])
    cosines = features @ features.T - 2 * torch.eye(110)
    assert cosines.max() < 0.997  # no two names are read alike; boy and girl are nearest


def test_it_recognises_photographs_it_was_not_trained_on(photo: Embedded) -> None:
    photos = Photographs()
    classifier = photo.classifier(CIFAR10)
    pixels = torch.from_numpy(np.stack(photos.read("clean", 0, range(0, 2000, 4))))
    labels = torch.from_numpy(photos.labels("clean")[::4])
    with torch.no_grad():
        answers = classifier.cosines(classifier.features(photo.preprocess(pixels))).argmax(1)
    assert (answers == labels).float().mean() > 0.85


# Its file.


def test_photo_file_says_what_it_holds(photo: Embedded) -> None:
    written = read_metadata(PHOTO)
    assert PHOTO.stat().st_size <= 8_000_000
    assert photo.logit_scale == 100.0
    assert photo.facts["format"] == "lmr-photo"
    assert photo.facts["clean accuracy"] == written["clean_accuracy"]
    assert "aquarium fish" in photo.facts["class names"]
    assert "photo" in photo.facts["words"]
    assert not any(parameter.requires_grad for parameter in photo.encoder.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in photo.encoder.modules())
