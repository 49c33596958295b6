"""AugMix (Hendrycks et al. 2020) on pixel values: chains of simple operations, mixed with the image they begin from.

Three chains of one to three operations, mixed with weights of a Dirichlet(1, 1, 1) distribution; the mixture and the
image are mixed again with a weight of a Beta(1, 1) distribution. The operations and their strengths (severity 1) are
those of TPT and MEMO; all work on whole pixel values from 0 to 255, as their originals in Pillow do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lmr.core.views.crops import sample_bilinear

CHAINS, LONGEST = 3, 3
SEVERITY = 1.0


class Recipe(NamedTuple):
    """The operations on V views: chains, their strengths from -1 to 1, and the weights of the mixture."""

    operation: Tensor  # int64 [V, chains, longest]
    strength: Tensor  # float64, the same shape; the sign is that of an operation with a direction
    length: Tensor  # int64 [V, chains]
    weight: Tensor  # float64 [V, chains]
    original: Tensor  # float64 [V], the weight of the image itself


def draw_recipe(generator: torch.Generator, count: int) -> Recipe:
    """Draw a recipe for ``count`` views."""
    shape = (count, CHAINS, LONGEST)
    kinds, levels, signs = torch.rand(3, *shape, generator=generator, dtype=torch.float64)
    lengths, weights = torch.rand(2, count, CHAINS, generator=generator, dtype=torch.float64)
    original = torch.rand(count, generator=generator, dtype=torch.float64)
    shares = -torch.log1p(-weights)  # exponential numbers divided by their sum are a Dirichlet(1, ..., 1) draw
    strength = (0.1 + (SEVERITY - 0.1) * levels) * torch.where(signs > 0.5, -1.0, 1.0) / 10
    operation = (kinds * len(OPERATIONS)).long()
    return Recipe(operation, strength, 1 + (lengths * LONGEST).long(), shares / shares.sum(1, keepdim=True), original)


def mix_chains(pixels: Tensor, recipe: Recipe, fill: tuple[float, ...]) -> Tensor:
    """Mix views [V, C, H, W] of whole pixel values by the recipe. ``fill`` is the colour of uncovered pixels.

    The result is not rounded: it is a mean, of images that would be preprocessed first.
    """
    colour = pixels.new_tensor(fill).view(-1, 1, 1)
    mixture = torch.zeros_like(pixels)
    for chain in range(CHAINS):
        x = pixels.clone()
        for place in range(LONGEST):
            running = recipe.length[:, chain] > place
            for number, operate in enumerate(OPERATIONS):
                chosen = (running & (recipe.operation[:, chain, place] == number)).nonzero().flatten()
                if len(chosen):
                    strength = recipe.strength[chosen, chain, place]
                    rows = chosen.to(x.device)
                    x[rows] = operate(x[rows], strength, colour)
        mixture += _spread(recipe.weight[:, chain], pixels) * x
    kept = _spread(recipe.original, pixels)
    return kept * pixels + (1 - kept) * mixture


def stretch_contrast(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Every channel stretched to the range from 0 to 255; a channel of one value stays as it is."""
    low, high = x.amin((-2, -1), keepdim=True).double(), x.amax((-2, -1), keepdim=True).double()
    scale = 255 / (high - low).clamp(min=1)
    stretched = (x * scale - low * scale).floor().clamp(0, 255)
    return torch.where(high > low, stretched, x.double()).to(x.dtype)


def equalize(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Every channel with a histogram as flat as whole values allow.

    The value i becomes floor((step / 2 + number of pixels below i) / step), where ``step`` is a 255th of the pixels
    that do not have the channel's largest value. Without one, the channel stays as it is.
    """
    flat = x.flatten(0, 1).flatten(1).long()
    counts = torch.zeros(len(flat), 256, dtype=torch.int64, device=x.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    largest = flat.amax(1, keepdim=True)
    step = (flat.shape[1] - counts.gather(1, largest)) // 255
    below = counts.cumsum(1) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, flat), flat).view(x.shape).to(x.dtype)


def posterize(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Keep the highest four bits of each value, or fewer with more strength."""
    bits = 4 - (4 * strength.abs()).floor()
    size = _spread(2.0 ** (8 - bits), x)
    return (x / size).floor() * size


def solarize(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Values from a threshold on inverted; the threshold falls from 256 with the strength."""
    threshold = _spread(256 - (256 * strength.abs()).floor(), x)
    return torch.where(x < threshold, x, 255 - x)


def rotate(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Rotate about the centre by whole degrees, at most 30 at full strength."""
    height, width = x.shape[-2:]
    angle = (30 * strength).trunc() * (math.pi / 180)
    cosine, sine = angle.cos(), angle.sin()
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    zero = torch.zeros_like(angle)
    one = torch.stack([cosine, -sine, zero, sine, cosine, zero], 1)
    one[:, 2] = middle_x - one[:, 0] * middle_x - one[:, 1] * middle_y
    one[:, 5] = middle_y - one[:, 3] * middle_x - one[:, 4] * middle_y
    return transform(x, one, colour)


def shear_x(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Rows moved along themselves, in proportion to their height; at most 0.3 at full strength."""
    return transform(x, _make_affine({1: 0.3 * strength}), colour)


def shear_y(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Shear columns likewise."""
    return transform(x, _make_affine({3: 0.3 * strength}), colour)


def translate_x(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Move to the side by whole pixels, at most a third of the width at full strength."""
    return transform(x, _make_affine({2: (x.shape[-1] / 3 * strength).trunc()}), colour)


def translate_y(x: Tensor, strength: Tensor, colour: Tensor) -> Tensor:
    """Move up or down likewise."""
    return transform(x, _make_affine({5: (x.shape[-2] / 3 * strength).trunc()}), colour)


Operation = Callable[[Tensor, Tensor, Tensor], Tensor]  # of pixels [n, C, H, W], strengths [n] and a colour [C, 1, 1]
OPERATIONS: tuple[Operation, ...] = (
    *(stretch_contrast, equalize, posterize, rotate, solarize),
    *(shear_x, shear_y, translate_x, translate_y),
)


def transform(x: Tensor, affine: Tensor, colour: Tensor) -> Tensor:
    """Pixels [n, C, H, W] moved: the value at (a, b) comes from the point that ``affine`` [n, 6] maps it to.

    A place whose source is outside of the image gets the colour.
    """
    height, width = x.shape[-2:]
    a, b = torch.arange(width, dtype=torch.float64), torch.arange(height, dtype=torch.float64).unsqueeze(1)
    source_x, source_y = (
        row[0].view(-1, 1, 1) * a + row[1].view(-1, 1, 1) * b + row[2].view(-1, 1, 1)
        for row in (affine[:, :3].T, affine[:, 3:].T)
    )
    inside = (source_x >= -0.5) & (source_x < width - 0.5) & (source_y >= -0.5) & (source_y < height - 0.5)
    moved = (sample_bilinear(x.double(), source_x, source_y) + 1e-6).floor()  # Pillow cuts decimals off
    return torch.where(inside.unsqueeze(1).to(x.device), moved.to(x.dtype), colour)


def _make_affine(entries: dict[int, Tensor]) -> Tensor:
    """Return the identity [n, 6] with some entries replaced. The origin is the corner of the image, as in Pillow."""
    affine = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64).repeat(len(next(iter(entries.values()))), 1)
    for place, value in entries.items():
        affine[:, place] = value
    affine[:, 2] += 0.5 * (affine[:, 0] + affine[:, 1]) - 0.5
    affine[:, 5] += 0.5 * (affine[:, 3] + affine[:, 4]) - 0.5
    return affine


def _spread(values: Tensor, like: Tensor) -> Tensor:
    """One number [n] for each view, in a shape that combines with [n, C, H, W]."""
    return values.to(like.device, like.dtype).view(-1, 1, 1, 1)
