"""The strong augmentation: each operation against a plain form of it, and the whole."""

from __future__ import annotations

import colorsys
import math

import pytest
import torch
from torch import Tensor

from lmr.core.views import jitter as module
from lmr.core.views.jitter import (
    blur,
    change_brightness,
    change_contrast,
    change_gamma,
    change_saturation,
    jitter,
    move,
    turn_hue,
)


@pytest.fixture
def images() -> Tensor:
    x = torch.rand(2, 3, 6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, :, 0, 0] = 0.4  # a grey pixel has no hue
    x[0, 0, 1, 1] = x[0, 1, 1, 1]  # two channels that are equal
    return x


@pytest.mark.parametrize("share", [0.05, -0.06, 0.3])
def test_hue_is_that_of_the_standard_library(images: Tensor, share: float) -> None:
    turned = turn_hue(images, share)
    for pixel, found in zip(images.movedim(1, 3).reshape(-1, 3), turned.movedim(1, 3).reshape(-1, 3), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
        expected = colorsys.hsv_to_rgb((hue + share) % 1, saturation, value)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_colours_are_mixed_with_black_grey_and_mean(images: Tensor) -> None:
    grey = 0.2989 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]
    torch.testing.assert_close(change_brightness(images, 1.4), (1.4 * images).clamp(max=1))
    torch.testing.assert_close(change_saturation(images, 0.0), grey.expand_as(images))
    flat = change_contrast(images, 0.0)
    assert [len(image.unique()) for image in flat] == [1, 1]
    assert flat[1].mean().item() == pytest.approx(grey[1].mean().item())
    torch.testing.assert_close(change_gamma(images, 2.0), images * images)
    for adjust in (change_brightness, change_contrast, change_saturation, change_gamma):
        torch.testing.assert_close(adjust(images, 1.0), images)


def test_images_are_moved_by_pixels_and_turned_about_their_centre(images: Tensor) -> None:
    torch.testing.assert_close(move(images, 0.0, 0, 0, 1.0, 0), images)
    right = move(images, 0.0, 2, 0, 1.0, 0)
    torch.testing.assert_close(right[..., 2:], images[..., :-2])
    torch.testing.assert_close(right[..., 0], images[..., 0])  # the edge goes on
    torch.testing.assert_close(move(images, 0.0, 0, 1, 1.0, 0)[:, :, 1:], images[:, :, :-1])
    torch.testing.assert_close(move(images, 180.0, 0, 0, 1.0, 0), images.flip(-1, -2))
    assert move(images, 5.0, 0, 0, 1.0, 2).shape == (2, 3, 10, 11)


@pytest.mark.parametrize(
    ("degrees", "right", "down", "scale"), [(0.0, 2, 0, 1.0), (14.0, -1, 1, 0.9), (-9.0, 0, 0, 1.1)]
)
def test_mirrored_images_are_those_of_a_padded_image(
    images: Tensor, degrees: float, right: int, down: int, scale: float
) -> None:
    """As torchvision: padded by reflection, moved as a whole, the middle cut out."""
    padded = torch.nn.functional.pad(images, (3, 3, 3, 3), mode="reflect")
    expected = move(padded, degrees, right, down, scale)[..., 3:-3, 3:-3]
    torch.testing.assert_close(move(images, degrees, right, down, scale, mirrored=True), expected)


def test_blur_keeps_a_plane_and_spreads_a_point() -> None:
    point = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    point[0, 0, 4, 4] = 1
    spread = blur(point, 0.5)[0, 0]
    assert spread.shape == (5, 5)
    assert spread.sum().item() == pytest.approx(1)
    assert (spread[2, 2] / spread[2, 3]).item() == pytest.approx(math.exp(2))
    torch.testing.assert_close(blur(torch.full((1, 3, 9, 9), 0.3), 0.4), torch.full((1, 3, 5, 5), 0.3))


def test_plain_picture_changes_by_brightness_gamma_and_noise_alone() -> None:
    """All else leaves one grey as it is; the noise is that of every pixel, the level one for all images of a call."""
    levels = []
    for seed in range(300):
        made = jitter(torch.full((2, 3, 24, 24), 0.5, dtype=torch.float64), torch.Generator().manual_seed(seed))
        level = made.mean().item()
        assert (made - level).std().item() == pytest.approx(0.005, rel=0.1)
        assert (made.mean((-2, -1)) - level).abs().max() < 1e-3
        levels.append(level)
    assert (0.6 * 0.5) ** 1.3 - 1e-3 <= min(levels) < 0.24
    assert 0.8 < max(levels) <= 1.4 * 0.5**0.7 + 1e-3


def test_half_of_the_pictures_are_flipped_and_all_are_moved_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("change_brightness", "change_contrast", "change_saturation", "turn_hue", "change_gamma"):
        monkeypatch.setattr(module, name, lambda x, amount: x)
    ramp = torch.linspace(0.3, 0.7, 32, dtype=torch.float64).expand(1, 3, 32, 32)  # darker to the left
    flipped, shifts = 0, []
    for seed in range(200):
        made = jitter(ramp, torch.Generator().manual_seed(seed))[0, 0, 12:20]
        flipped += bool(made[:, 24:].mean() < made[:, :8].mean())
        shifts.append((made[:, 15:17].mean().item() - 0.5) / 0.4 * 31)
    assert 80 < flipped < 120
    assert 3 < max(map(abs, shifts)) < 4.9  # a sixteenth of twice the width, over the smallest scale
