"""A small tower for pictures, and streams on it that pass through every phase of steady."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmr_reference import Tower

HEIGHT, WIDTH = 9, 6


class PictureTower(Tower):
    """The tower of LMR's reference on pictures [B, 3, H, 6]: features [B, 11]."""

    def forward(self, images: Tensor) -> Tensor:
        return encode_pictures(super().forward, images)


def encode_pictures(encode: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Features of the columns, whatever their light, colour and details; then one that all classes lack.

    The last one is fog: it grows with the light, and lowers all cosines.
    """
    fog = 12 * images.mean((1, 2, 3)).square()
    return torch.cat([encode(level(images.mean(2))), fog.unsqueeze(1)], 1)


@dataclass(frozen=True)
class Phase:
    """Images of one domain: light and noise make the model doubt, details change the pixels alone."""

    images: int
    noise: float = 0.05
    detail: float = 0.5
    repeats: int = 1  # frames that show the same
    light: float = 0.0
    skew: float = 0.0  # part of the images that shows class 0


def make_problem(classes: int = 12, seed: int = 9) -> tuple[PictureTower, Tensor, Tensor]:
    """A tower, prototypes [C, 11] and an anchor [C, 3, 6] for each class, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tower = PictureTower().double()
        anchors = level(torch.randn(classes, 3, WIDTH, dtype=torch.float64))
    with torch.no_grad():
        return tower, tower(anchors.unsqueeze(2)), anchors


def level(columns: Tensor) -> Tensor:
    """Columns [B, 3, 6] with a mean of 0 in every channel: classes do not differ in light and colour."""
    return columns - columns.mean(2, keepdim=True)


def draw(anchors: Tensor, phases: Sequence[Phase], seed: int = 0, height: int = HEIGHT) -> Tensor:
    """Images [B, 3, height, 6] of all phases, one after the other."""
    generator = torch.Generator().manual_seed(seed)

    def sample(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parts = []
    for phase in phases:
        count = phase.images // phase.repeats
        labels = torch.randint(len(anchors), (count,), generator=generator)
        labels[torch.rand(count, generator=generator) < phase.skew] = 0
        detail = sample(count, 3, height, WIDTH)
        columns = anchors[labels] + phase.noise * level(sample(count, 3, WIDTH))
        light = phase.light + 0.25 * sample(count, 3, 1)
        images = (columns + light).unsqueeze(2) + phase.detail * (detail - detail.mean(2, keepdim=True))
        parts.append(images.repeat_interleave(phase.repeats, 0))
    return torch.cat(parts)
