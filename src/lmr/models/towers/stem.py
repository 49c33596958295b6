"""An image tower whose tokens come from convolutions: at 32x32 pixels they learn far faster than a patch layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.models.towers.image import VisionConfig, VisionTower

_PART = 16  # images that go through the stem at once

Ending = Literal["relu", "residual", "plain"]


class StemLayer(nn.Module):
    """A 3x3 convolution; with a batch norm during training."""

    def __init__(self, before: int, after: int, stride: int, ending: Ending, normed: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, padding=1, bias=not normed)
        self.norm: nn.Module = nn.BatchNorm2d(after) if normed else nn.Identity()
        self.ending = ending

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, before, h, w] to [n, after, h / stride, w / stride]."""
        y: Tensor = self.norm(self.conv(x))
        if self.ending == "plain":
            return y
        return F.relu(y) if self.ending == "relu" else x + F.relu(y)


class ConvStem(nn.Sequential):
    """Images [n, 3, h, w] to [n, width, h / 8, w / 8] for three channel counts; each further one halves again."""

    def __init__(self, channels: Sequence[int], width: int, normed: bool) -> None:
        layers = [StemLayer(3, channels[0], 1, "relu", normed)]
        for k in range(1, len(channels)):
            layers.append(StemLayer(channels[k - 1], channels[k], 2, "relu", normed))
            layers.append(StemLayer(channels[k], channels[k], 1, "residual", normed))
        layers.append(StemLayer(channels[-1], width, 2, "plain", normed))
        super().__init__(*layers)
        for layer in layers:  # the faster layout for convolutions on a CPU
            layer.conv.weight.data = layer.conv.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Return the grid of tokens."""
        x = images.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = layer(x)
        return x


class StemTower(VisionTower):
    """An image tower with a stem of convolutions in place of the patch layer.

    The stem has no LayerNorm, so the backward to the norms ends before it. Computing its tokens costs as much as the
    blocks, so the passes of a step share them (``AdaptedTower``).
    """

    is_clip = False
    slow_to_embed = True

    def __init__(self, config: VisionConfig, channels: Sequence[int], trained: bool = True) -> None:
        if config.patch != 2 ** len(channels):
            raise LmrError(f"A stem of {len(channels)} sizes makes patches of {2 ** len(channels)} pixels.")
        super().__init__(config)
        self.patches = ConvStem(channels, config.width, normed=not trained)

    def _cut_patches(self, images: Tensor) -> Tensor:
        # Batch norms see the whole batch in training. After that, parts that fit into the cache are a fifth faster.
        # Parts are of about equal size: an image that went alone would have other last digits than among others.
        parts = 1 if self.patches.training or torch.is_grad_enabled() else -(-len(images) // _PART)
        grid = torch.cat([self.patches(part) for part in images.tensor_split(max(1, parts))])
        return grid.flatten(2).transpose(1, 2)
