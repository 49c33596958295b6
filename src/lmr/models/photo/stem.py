"""Convolutions that turn an image into a grid of tokens: at 32x32 pixels they learn far faster than a patch layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_EPS = 1e-5  # of the batch norms

Ending = Literal["relu", "residual", "plain"]


class StemLayer(nn.Module):
    """A 3x3 convolution; with a batch norm while it is trained, which ``fold`` puts into the convolution after that."""

    def __init__(self, before: int, after: int, stride: int, ending: Ending, normed: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride, padding=1, bias=not normed)
        self.norm: nn.Module = nn.BatchNorm2d(after, eps=_EPS) if normed else nn.Identity()
        self.ending = ending

    def forward(self, x: Tensor) -> Tensor:
        """[n, before, h, w] to [n, after, h / stride, w / stride]."""
        y: Tensor = self.norm(self.conv(x))
        if self.ending == "plain":
            return y
        return F.relu(y) if self.ending == "relu" else x + F.relu(y)


class ConvStem(nn.Sequential):
    """Images [n, 3, h, w] to [n, width, h / 8, w / 8] for three numbers of channels; each further one halves again."""

    def __init__(self, channels: Sequence[int], width: int, normed: bool) -> None:
        layers = [StemLayer(3, channels[0], 1, "relu", normed)]
        for k in range(1, len(channels)):
            layers.append(StemLayer(channels[k - 1], channels[k], 2, "relu", normed))
            layers.append(StemLayer(channels[k], channels[k], 1, "residual", normed))
        layers.append(StemLayer(channels[-1], width, 2, "plain", normed))
        super().__init__(*layers)
        for layer in layers:  # convolutions on a CPU are faster so
            layer.conv.weight.data = layer.conv.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """The grid of tokens."""
        x = images.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = layer(x)
        return x


@torch.no_grad()
def fold_norms(stem: ConvStem) -> dict[str, Tensor]:
    """The weights of the same stem without batch norms: each is a scale and a shift of every channel, once trained."""
    weights: dict[str, Tensor] = {}
    for number, layer in enumerate(stem):
        conv, norm = layer.get_parameter("conv.weight"), layer.get_submodule("norm")
        mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        scale = norm.get_parameter("weight") / (variance + _EPS).sqrt()
        weights[f"{number}.conv.weight"] = conv * scale[:, None, None, None]
        weights[f"{number}.conv.bias"] = norm.get_parameter("bias") - mean * scale
    return weights
