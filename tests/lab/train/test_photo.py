"""Training of the photo model: what it sees and reads, its schedule, its checkpoints. On random images; quick."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lab.train import photo, photo_images
from lab.train.photo import PhotoRecipe, PhotoTraining, fold_norms, train
from lab.train.photo_images import TrainingImages, read_training_images
from lmr.core.errors import LmrError
from lmr.data import cifar
from lmr.models.embedded import Embedded
from lmr.models.towers.stem import ConvStem
from set_maker import make_cifar

RECIPE = PhotoRecipe(steps=4, batch=8, warm=2)


@pytest.fixture
def images() -> TrainingImages:
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8, generator=random)
    return TrainingImages(pixels, torch.randint(110, (40,), generator=random))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small CIFAR sets; two training images are test images too."""
    monkeypatch.setattr(cifar, "COUNT", 30)
    monkeypatch.setattr(photo_images, "TRAINING_COUNT", 50)
    for classes in (10, 100):
        images, labels = make_cifar(80, classes, seed=classes)
        np.savez(tmp_path / f"cifar{classes}_test.npz", images=images[:30], labels=labels[:30])
        kept = images[30:].copy()
        kept[7] = images[3]
        np.savez(tmp_path / f"cifar{classes}_train.npz", images=kept, labels=labels[30:])
    return tmp_path


# What it sees.


def test_training_images_are_those_of_both_sets_without_test_images(root: Path) -> None:
    images = read_training_images(root)
    assert len(images) == 2 * 49
    assert images.pixels.shape == (98, 3, 32, 32)
    assert images.labels[:49].max() < 10 <= images.labels[49:].min()
    with np.load(root / "cifar100_train.npz") as file:
        np.testing.assert_array_equal(images.pixels[49 + 7].permute(1, 2, 0).numpy(), file["images"][8])
        assert images.labels[49 + 7] == file["labels"][8] + 10


# What it reads.


# How it learns.


def test_training_writes_a_model_that_loads(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = root / "new" / "photo.safetensors"
    train(RECIPE, out, root=str(root))
    printed = capsys.readouterr().out
    assert "98 photographs, 110 names" in printed
    assert "Zero-shot accuracy on the test images: CIFAR-10 " in printed
    assert "kept aside" not in printed
    model = Embedded(out)
    assert model.facts["training"].startswith("4 batches of 8")
    assert model.classifier(["cat", "dog"]).classes == 2
    assert not out.with_name("photo.safetensors.checkpoint").exists()


def test_loss_that_is_not_finite_stops_the_training(images: TrainingImages) -> None:
    training = PhotoTraining(RECIPE, images)
    with torch.no_grad():
        training.model.image.projection[0, 0] = float("nan")
    with pytest.raises(LmrError, match="finite"):
        training.take_step()


# Interruptions.


@pytest.mark.slow
def test_killed_training_resumes_by_command(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photo, "_EVERY", 1)
    out, straight = root / "a.safetensors", root / "b.safetensors"
    step = PhotoTraining.take_step

    def stop_at_the_third(self: PhotoTraining) -> float:
        if self.done == 2:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patched:
        patched.setattr(PhotoTraining, "take_step", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            train(RECIPE, out, root=str(root))
    assert not out.exists()
    with pytest.raises(LmrError, match=r"There is a checkpoint .*; give --resume"):
        train(RECIPE, out, root=str(root))
    train(RECIPE, out, root=str(root), resume=True)
    assert "Resumed after 2 of 4 steps." in capsys.readouterr().out
    train(RECIPE, straight, root=str(root))
    own, other = Embedded(out).encoder.state_dict(), Embedded(straight).encoder.state_dict()
    assert all(torch.equal(own[key], other[key]) for key in own)


@pytest.mark.parametrize("damage", [b"", b"noise", None])
def test_checkpoint_that_cannot_be_used_is_refused(damage: bytes | None, images: Any, tmp_path: Path) -> None:
    training = PhotoTraining(RECIPE, images)
    training.save(tmp_path / "kept")
    if damage is not None:
        (tmp_path / "kept").write_bytes(damage or (tmp_path / "kept").read_bytes()[:1000])
    other = PhotoTraining(dataclasses.replace(RECIPE, lr=1.0), images)
    with pytest.raises(LmrError) as error:
        other.resume(tmp_path / "kept")
    assert ("written by another recipe" in str(error.value)) == (damage is None)
    assert ("damaged or not a checkpoint" in str(error.value)) == (damage is not None)


def test_folded_stem_is_the_trained_one() -> None:
    torch.manual_seed(0)
    trained = ConvStem((4, 6, 8), 10, normed=True).double()
    for _ in range(5):  # moves the running statistics
        trained(torch.randn(8, 3, 16, 16, dtype=torch.float64) * 2 + 1)
    for parameter in trained.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    folded = ConvStem((4, 6, 8), 10, normed=False).double()
    folded.load_state_dict(fold_norms(trained))
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(folded(images), trained.eval()(images), rtol=0, atol=1e-12)
    assert folded(images).shape == (3, 10, 2, 2)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
