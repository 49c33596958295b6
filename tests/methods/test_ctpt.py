"""C-TPT against plain autograd."""

from __future__ import annotations

import pytest
from torch import Tensor

import lmr
from prompt_reference import compare_streams
from view_problem import measure_mean_entropy


def make_loss(weight: float):  # type: ignore[no-untyped-def]
    def loss(logits: Tensor, texts: Tensor) -> Tensor:
        mean = sum(texts) / len(texts)
        apart = sum((text - mean).square().sum().sqrt() for text in texts) / len(texts)
        return measure_mean_entropy(logits) - weight * apart

    return loss


@pytest.mark.parametrize("weight", [50.0, 20.0, 0.3])
def test_stream_is_that_of_the_reference(weight: float) -> None:
    compare_streams(f"ctpt(dispersion={weight})", make_loss(weight))


@pytest.mark.parametrize("name", ["tpt", "ctpt", "otpt", "dynaprompt"])
def test_views_of_fine_grained_sets_are_mixed_by_augmix_and_others_are_not(name: str) -> None:
    presets = lmr.find_method(name).card.presets
    assert presets["fine-grained"].values["augmix"] is True
    assert "augmix" not in presets["default"].values
