"""A small classifier with a text tower, the same at every call: states and answers of older versions belong to it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmr import PixelScale, ZeroShot
from lmr.core.text import TextSide

CLASSES, WIDTH = 6, 8
SHAPE = (4, WIDTH)  # of an image; the classifier is not told, so that it is not taken for a picture or a table


class SmallTower(nn.Module):
    """Tokens [B, n, 8] to features [B, 8] with two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.mix(self.first(x)))
        return self.out(self.second(x.mean(1)))


def fill(module: nn.Module, first: int) -> nn.Module:
    """Weights that depend on nothing but this formula: no generator, no version of torch."""
    with torch.no_grad():
        for k, (name, value) in enumerate(sorted(module.named_parameters())):
            wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * (0.7 + 0.1 * k) + first + k)
            start = 1.0 if name.endswith("weight") and value.ndim == 1 else 0.0
            value.copy_((start + 0.4 * wave).view(value.shape))
    return module


class SmallPrompts:
    """Prompts [C, 3, 8] whose first two vectors are a context."""

    def __init__(self, prompts: Tensor) -> None:
        self.prompts, self.order = prompts, torch.arange(len(prompts))

    def start(self, tower: nn.Module) -> Tensor:
        return self.prompts[0, :2]

    def encode(self, tower: nn.Module, classes: Tensor, context: Tensor) -> Tensor:
        common = context.to(self.prompts.dtype).expand(len(classes), -1, -1)
        return tower(torch.cat([common, self.prompts[classes, 2:]], 1))


def make_classifier(dtype: torch.dtype = torch.float64) -> ZeroShot:
    """Six classes."""
    image, text = fill(SmallTower().double(), 1).to(dtype), fill(SmallTower().double(), 2).to(dtype)
    prompts = torch.sin(torch.arange(CLASSES * 3 * WIDTH, dtype=torch.float64) * 1.3).view(CLASSES, 3, WIDTH).to(dtype)
    learnt = SmallPrompts(prompts)
    side = TextSide(text, lambda tower, part: tower(prompts[part]), CLASSES, learn=lambda context, names: learnt)
    with torch.no_grad():
        prototypes = text(prompts)
    return ZeroShot(image, prototypes, 20.0, text=side, pixels=PixelScale((0.5,), (0.5,)))


def make_images(batch: int) -> Tensor:
    """Eight images [8, 4, 8] of batch number ``batch``."""
    return torch.cos(torch.arange(8 * 4 * WIDTH, dtype=torch.float64) * (0.9 + 0.05 * batch) + batch).view(8, 4, WIDTH)
