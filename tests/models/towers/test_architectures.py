"""The table of sizes against what is known of the models."""

from __future__ import annotations

import pytest
import torch

import lmr
from lmr.models.formats.checkpoints import make_towers
from lmr.models.towers.architectures import ARCHITECTURES, find_architecture, name_architecture
from lmr.models.towers.image import VisionConfig
from lmr.models.towers.text import TextConfig

# Millions of parameters of image and text tower, from open_clip's docs/model_profile.csv.
MILLIONS = {
    "ViT-S-32": (22.64, 40.44),
    "ViT-S-16": (21.81, 40.44),
    "ViT-M-32": (39.69, 63.43),
    "ViT-M-16": (38.59, 63.43),
    "ViT-B-32": (87.85, 63.43),
    "ViT-B-32-256": (87.86, 63.43),
    "ViT-B-32-plus-256": (119.13, 91.16),
    "ViT-B-16": (86.19, 63.43),
    "ViT-B-16-plus": (117.19, 91.16),
    "ViT-B-16-plus-240": (117.21, 91.16),
    "ViT-L-16": (304.09, 123.65),
    "ViT-L-16-320": (304.3, 123.65),
    "ViT-L-14": (303.97, 123.65),
    "ViT-L-14-280": (304.11, 123.65),
    "ViT-L-14-336": (304.29, 123.65),
    "ViT-H-16": (632.23, 354.03),
    "ViT-H-14": (632.08, 354.03),
    "ViT-g-14": (1012.65, 354.03),
    "ViT-bigG-14": (1844.91, 694.66),
    "ViT-e-14": (3807.72, 773.37),
}


@pytest.mark.parametrize("name", MILLIONS)
def test_sizes_give_the_known_number_of_parameters(name: str) -> None:
    counts = [
        sum(parameter.numel() for parameter in tower.parameters()) for tower in make_towers(find_architecture(name))
    ]
    assert [count / 1e6 for count in counts] == pytest.approx(MILLIONS[name], abs=0.01)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_whole(name: str) -> None:
    image, text = find_architecture(name)
    assert image.resolution % image.patch == 0
    assert image.width % image.heads == 0
    assert text.width % text.heads == 0
    assert image.features == text.features
    assert image.activation == text.activation == "gelu"
    quick = find_architecture(f"{name}-quickgelu")
    assert {part.activation for part in quick} == {"quick_gelu"}
    assert name_architecture(image, text) == name
    assert name_architecture(*quick) == f"{name}-quickgelu"


def test_openais_base_model_is_the_default() -> None:
    assert find_architecture("ViT-B-16-quickgelu") == (VisionConfig(), TextConfig())


def test_sizes_without_a_name() -> None:
    assert name_architecture(VisionConfig(depth=3), TextConfig()) is None
    assert name_architecture(VisionConfig(activation="gelu"), TextConfig()) is None


@pytest.mark.parametrize("name", ["ViT-B", "RN50", "ViT-B-16-quickgelu-quickgelu", "", None, torch.float32])
def test_unknown_architecture_gets_a_message(name: str) -> None:
    with pytest.raises(lmr.LmrError, match=r"There is no architecture .* There are: ViT-S-32.*the suffix '-quickgelu'"):
        find_architecture(name)
