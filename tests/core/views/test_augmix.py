"""AugMix: every operation against Pillow's, and the mixture against a loop over views and chains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F

from lmr.core.views import augmix

WIDTH, HEIGHT = 40, 56
RED = (128.0, 0.0, 0.0)  # what Pillow makes of the single number 128
Picture = Image.Image


def make_pixels(seed: int = 0, count: int = 1) -> Tensor:
    """Smooth pictures of whole values."""
    noise = 40 + 180 * torch.rand(count, 3, 7, 5, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, (HEIGHT, WIDTH), mode="bicubic").round().clamp(0, 255)


def to_pillow(pixels: Tensor) -> Picture:
    return Image.fromarray(pixels.permute(1, 2, 0).byte().numpy())


def from_pillow(picture: Picture) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()


def move(picture: Picture, *matrix: float) -> Picture:
    way, how = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    return picture.transform(picture.size, way, matrix, resample=how, fillcolor=128)


ORIGINALS: dict[str, Callable[[Picture, float], Picture]] = {
    "stretch_contrast": lambda picture, _: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "posterize": lambda picture, level: ImageOps.posterize(picture, 4 - int(4 * abs(level))),
    "solarize": lambda picture, level: ImageOps.solarize(picture, 256 - int(256 * abs(level))),
    "rotate": lambda p, level: p.rotate(int(30 * level), resample=Image.Resampling.BILINEAR, fillcolor=128),
    "shear_x": lambda picture, level: move(picture, 1, 0.3 * level, 0, 0, 1, 0),
    "shear_y": lambda picture, level: move(picture, 1, 0, 0, 0.3 * level, 1, 0),
    "translate_x": lambda picture, level: move(picture, 1, 0, int(WIDTH / 3 * level), 0, 1, 0),
    "translate_y": lambda picture, level: move(picture, 1, 0, 0, 0, 1, int(HEIGHT / 3 * level)),
}


def test_all_operations_are_there() -> None:
    assert {operation.__name__ for operation in augmix.OPERATIONS} == set(ORIGINALS)


@pytest.mark.parametrize("name", ORIGINALS)
def test_operation_is_that_of_pillow(name: str) -> None:
    levels = [0.01, 0.05, -0.08, 0.1, 0.4, -0.9]
    pixels = torch.cat([make_pixels(seed) for seed in range(len(levels))])
    colour = torch.tensor(RED).view(3, 1, 1)
    found = getattr(augmix, name)(pixels, torch.tensor(levels, dtype=torch.float64), colour)
    changed = False
    for picture, level, own in zip(pixels, levels, found, strict=True):
        difference = (own - from_pillow(ORIGINALS[name](to_pillow(picture), level))).abs()
        assert difference.max() <= 1
        assert (difference > 0).double().mean() < 0.01
        changed |= not torch.equal(own, picture)
    assert changed


def test_plain_picture_stays() -> None:
    plain = torch.full((1, 3, 8, 8), 77.0)
    for operate in (augmix.stretch_contrast, augmix.equalize):
        assert torch.equal(operate(plain, torch.zeros(1), torch.zeros(3, 1, 1)), plain)


def test_mixture_is_that_of_a_loop() -> None:
    recipe = augmix.draw_recipe(torch.Generator().manual_seed(2), 12)
    pixels = make_pixels(9, count=12).double()
    mixed = augmix.mix_chains(pixels, recipe, RED)
    colour = torch.tensor(RED, dtype=torch.float64).view(3, 1, 1)
    for k in range(12):
        total = torch.zeros_like(pixels[k])
        for chain in range(3):
            x = pixels[k : k + 1]
            for place in range(int(recipe.length[k, chain])):
                operate = augmix.OPERATIONS[int(recipe.operation[k, chain, place])]
                x = operate(x, recipe.strength[k, chain, place].view(1), colour)
            total += recipe.weight[k, chain] * x[0]
        share = recipe.original[k]
        torch.testing.assert_close(mixed[k], share * pixels[k] + (1 - share) * total, atol=1e-9, rtol=0)


def test_recipe_has_the_published_distribution() -> None:
    recipe = augmix.draw_recipe(torch.Generator().manual_seed(0), 20_000)
    counts = recipe.operation.flatten().bincount(minlength=len(augmix.OPERATIONS)).double()
    torch.testing.assert_close(counts / counts.sum(), torch.full((9,), 1 / 9, dtype=torch.float64), atol=3e-3, rtol=0)
    shares = recipe.length.flatten().bincount(minlength=4).double() / recipe.length.numel()
    torch.testing.assert_close(shares, torch.tensor([0, 1, 1, 1], dtype=torch.float64) / 3, atol=0.01, rtol=0)
    assert 0.0099 < recipe.strength.abs().min() < 0.0101
    assert 0.0999 < recipe.strength.abs().max() < 0.1001
    assert abs((recipe.strength > 0).double().mean() - 0.5) < 0.01
    torch.testing.assert_close(recipe.weight.sum(1), torch.ones(20_000, dtype=torch.float64))
    assert abs(recipe.weight.var(0).mean() - 1 / 18) < 2e-3  # of a Dirichlet(1, 1, 1) distribution
    assert abs(recipe.original.var() - 1 / 12) < 2e-3
