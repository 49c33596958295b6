"""`lmr doctor`: it describes what was loaded, and every check can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import lmr
from lmr.apps.doctor import examine as examine_file
from lmr.apps.doctor.examine import DoctorReport
from lmr.apps.options import DoctorOptions, ModelOptions
from lmr.cli import main
from lmr.core.placement import digest_tensors


class Tower(nn.Module):
    """A sound little image tower: mean colours of 4x4 fields, a norm, a projection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(192)
        self.head = nn.Linear(192, 16)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(F.avg_pool2d(images, 4).flatten(1)))


class Whole(lmr.Backbone):
    """A sound model; the others below break one thing each."""

    name, input_shape, logit_scale = "whole", (3, 32, 32), 50.0
    keeps_prototypes = False

    def __init__(self) -> None:
        self.encoder = Tower()
        self._text = nn.Linear(1, 1)

    def preprocess(self, image: Image.Image) -> Tensor:
        square = image.convert("RGB").resize((32, 32))
        return torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(32, 32, 3).permute(2, 0, 1) / 255

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        return F.normalize(torch.stack([self.encode_one(text) for text in texts]), dim=-1)

    def encode_one(self, text: str) -> Tensor:
        return torch.tensor([text.count(letter) + 0.1 for letter in "abcdefghilnorstu"])


class Broken(Tower):
    """Spoils the features with a function of them and of the images."""

    def __init__(self, spoil: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.spoil = spoil

    def forward(self, images: Tensor) -> Tensor:
        return self.spoil(super().forward(images))


class Padded(Whole):
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        longest = max(map(len, texts))
        return F.normalize(
            torch.stack([self.encode_one(text) + 0.01 * (longest - len(text)) for text in texts]), dim=-1
        )


class Deaf(Whole):
    def encode_one(self, text: str) -> Tensor:
        return torch.ones(16)


class Mute(Whole):
    def encode_one(self, text: str) -> Tensor:
        return torch.full((16,), float("nan")) if "dog" in text else super().encode_one(text)


class Silent(Whole):
    def encode_one(self, text: str) -> Tensor:
        return torch.zeros(16) if "dog" in text else super().encode_one(text)


class Normless(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return F.avg_pool2d(images, 16).flatten(1).repeat(1, 2)[:, :16]


class Adrift(Tower):
    """Writes into itself whenever gradients are on."""

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            with torch.no_grad():
                self.head.bias += 0.01
        return super().forward(images)


def examine(model: str | lmr.Backbone, **options: Any) -> DoctorReport:
    return examine_file.examine(model, DoctorOptions(**options))


def examine_tower(tower: nn.Module) -> DoctorReport:
    backbone = Whole()
    backbone.encoder = tower
    return examine(backbone)


def add_noise(features: Tensor) -> Tensor:
    return features + 1e-3 * torch.randn_like(features)


def lean_on_batch(features: Tensor) -> Tensor:
    return features - 0.1 * features.mean(0)


def lose_one(features: Tensor) -> Tensor:
    spoilt = features.clone()
    spoilt[-1] = float("nan")
    return spoilt


# ------------------------------------------------------------------------------------------------------ the self-check


def test_a_sound_model_passes() -> None:
    report = examine(Whole())
    assert report.failed == []
    assert report.complaint is None


@pytest.mark.parametrize(
    ("make", "failed"),
    [
        (lambda: examine_tower(Broken(lose_one)), "image features are finite"),
        (lambda: examine_tower(Broken(lambda f: f * 0)), "image features are unit vectors"),
        (
            lambda: examine_tower(Broken(lambda f: torch.ones_like(f) + 0 * f)),
            "different images have different features",
        ),
        (lambda: examine_tower(Broken(lean_on_batch)), "batch size changes nothing"),
        (lambda: examine_tower(Broken(add_noise)), "deterministic"),
        (lambda: examine(Mute()), "text features are finite"),
        (lambda: examine(Silent()), "text features are unit vectors"),
        (lambda: examine(Deaf()), "a gradient step adapts"),
        (lambda: examine(Deaf()), "different texts have different features"),
        (lambda: examine(Padded()), "padding changes nothing"),
        (lambda: examine_tower(Broken(lambda f: f.detach().requires_grad_())), "gradient step"),
        (lambda: examine_tower(Normless()), "gradient step"),
        (lambda: examine_tower(Adrift()), "the step leaves the model unchanged"),
    ],
)
def test_every_check_can_fail(make: Callable[[], DoctorReport], failed: str) -> None:
    report = make()
    assert failed in report.failed, str(report)
    assert f"  FAILED  {failed}: " in str(report)


# ---------------------------------------------------------------------------------------------------------- the screen


def test_screen_of_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "photo"]) == 0
    said = capsys.readouterr()
    backbone = lmr.load()
    text = said.out
    assert said.err == ""
    assert "FAILED" not in text
    assert f"adapted         {lmr.NormBank(backbone.encoder).size:,} parameters of layer norms\n" in text
    assert digest_tensors(backbone.encoder.state_dict())[:12] in text
    assert f"image {sum(p.numel() for p in backbone.encoder.parameters()):,}" in text
    assert "3 x 32 x 32, float32 on cpu" in text
    assert "logit scale     100\n" in text
    assert len(text.splitlines()) < 50


def test_failed_check_is_exit_code_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelOptions, "load", lambda self, model: Deaf())
    assert main(["doctor", "deaf"]) == 1
    said = capsys.readouterr()
    assert "FAILED  different texts have different features: largest cosine 1.0000" in said.out
    assert said.err.startswith("lmr: 2 of the checks failed: different texts have different features; ")
