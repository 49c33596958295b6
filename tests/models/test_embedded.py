"""The embedded model: its classifier, what it recognises, its file; its towers are those of other tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import lmr
from lmr.data.names import read_list
from lmr.data.photographs import Photographs
from lmr.models.embedded import PHOTO, Embedded
from lmr.models.towers.stem import StemTower

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


CIFAR10 = read_list("cifar10")


@pytest.mark.parametrize("name", ["lmr", "batclip"])
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


def test_tokens_do_not_depend_on_the_batch(photo: Embedded) -> None:
    images = torch.randn(33, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    whole = photo.encoder.embed(images)
    for count in (2, 16, 17, 33):
        assert torch.equal(photo.encoder.embed(images[:count]), whole[:count])
    torch.testing.assert_close(photo.encoder.embed(images[:1]), whole[:1], rtol=0, atol=1e-4)


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
