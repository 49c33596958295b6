"""Random resized crops: the boxes, their distribution, and the pixels cut out of an image."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from lmr.core.views.crops import Crops, draw_crops, place_crops, sample_grid


def draw(count: int, height: int = 224, width: int = 224, seed: int = 0) -> Crops:
    return draw_crops(torch.Generator().manual_seed(seed), count, height, width)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (32, 48), (4, 8), (1, 9), (1, 1)])
def test_boxes_lie_inside(height: int, width: int) -> None:
    crops = draw(2000, height, width)
    assert crops.height.min() >= 1
    assert crops.width.min() >= 1
    assert crops.top.min() >= 0
    assert crops.left.min() >= 0
    assert (crops.top + crops.height).max() <= height
    assert (crops.left + crops.width).max() <= width
    assert all(torch.equal(value, value.round()) for value in crops[:4])


def test_distribution_is_that_of_torchvision() -> None:
    """Areas, ratios and places of a large image, against the numbers of the definition by rejection."""
    crops = draw(40_000, 1000, 1000)
    area = crops.height * crops.width / 1e6
    ratio = crops.width / crops.height
    assert 0.079 < area.min() < 0.082
    assert 0.74 < ratio.min() < 0.76
    assert 1.32 < ratio.max() < 1.35
    generator = torch.Generator().manual_seed(5)
    wanted = 0.08 + 0.92 * torch.rand(200_000, generator=generator, dtype=torch.float64)
    shape = ((2 * torch.rand(200_000, generator=generator, dtype=torch.float64) - 1) * math.log(4 / 3)).exp()
    fits = (wanted * shape <= 1) & (wanted / shape <= 1)
    quantiles = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    torch.testing.assert_close(area.quantile(quantiles), wanted[fits].quantile(quantiles), atol=0.01, rtol=0)
    torch.testing.assert_close(
        ratio.log().quantile(quantiles), shape[fits].log().quantile(quantiles), atol=5e-3, rtol=0
    )
    room = 1000 - crops.width
    assert abs((crops.left[room > 50] / room[room > 50]).mean() - 0.5) < 0.01
    assert abs(crops.flipped.double().mean() - 0.5) < 0.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pixels_are_those_of_a_cropped_and_resized_image(dtype: torch.dtype) -> None:
    """Against slicing, torch's own interpolation and flip, box by box."""
    image = torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    crops = draw(60, 20, 30)
    views = sample_grid(image.expand(60, -1, -1, -1), **place_crops(crops, image))
    for k, view in enumerate(views):
        top, left, height, width = (int(value[k]) for value in crops[:4])
        box = image[:, top : top + height, left : left + width].unsqueeze(0)
        expected = F.interpolate(box, (20, 30), mode="bilinear", align_corners=False)[0]
        expected = expected.flip(-1) if crops.flipped[k] else expected
        torch.testing.assert_close(view, expected, atol=1e-10 if dtype == torch.float64 else 1e-4, rtol=0)
    assert 10 < int(crops.flipped.sum()) < 50
