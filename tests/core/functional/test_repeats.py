"""Repeated frames: the noise between two small copies, and what it explains."""

from __future__ import annotations

import torch

from lmr.core.functional.repeats import FLOOR, is_repeat, measure_lead, measure_noise, shrink


def draw_noise(count: int, deviation: float) -> torch.Tensor:
    return deviation * torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_small_copies_are_means_of_cells() -> None:
    images = torch.randn(2, 3, 48, 32, generator=torch.Generator().manual_seed(1))
    expected = images.reshape(2, 3, 16, 3, 16, 2).mean((3, 5))
    assert torch.allclose(shrink(images).float(), expected, atol=2e-3)
    assert shrink(torch.randn(2, 12)).shape == shrink(torch.randn(2, 5, 7, 9)).shape == (2, 3, 16, 16)
    assert shrink(torch.full((1, 3, 8, 8), 1e30)).isfinite().all()


def test_noise_is_measured_in_spite_of_light_and_objects() -> None:
    noise = draw_noise(50, 0.1)
    assert abs(measure_noise(noise).mean() - 0.1) < 0.01
    lit = noise + 2 + torch.linspace(0, 0.5, 16)
    lit[:, :, 4:8, 4:8] += 5
    assert (measure_noise(lit) - 0.1).abs().max() < 0.02


def test_noise_explains_noise_and_neither_light_nor_objects() -> None:
    noise, sizes = draw_noise(50, 0.1), torch.full((50,), 0.1)
    assert is_repeat(noise, sizes).all()
    assert not is_repeat(noise + 0.1, sizes).any()
    noise[:, :, 8, 8] += 1
    assert not is_repeat(noise, sizes).any()
    assert is_repeat(torch.full((1, 3, 16, 16), FLOOR), torch.zeros(1)).all()  # one level, on a camera without noise


def test_lead_is_that_over_the_best_other_class() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0], [5.0, 0.0, 1.0]])
    assert measure_lead(logits, torch.tensor([1, 2])).tolist() == [2.0, -4.0]
