"""Streams of features for methods that adapt no weights: the encoder is the identity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lmr

SCALE = 12.0


def make_stream(classes: int, count: int, width: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Prototypes [C, D], and features [N, D] from clear to hopeless that are not of unit length."""
    torch.manual_seed(seed)
    prototypes = torch.randn(classes, width, dtype=torch.float64)
    noise = torch.rand(count, 1, dtype=torch.float64) * 1.5
    features = prototypes[torch.randint(classes, (count,))] + noise * torch.randn(count, width, dtype=torch.float64)
    return prototypes, features * (0.5 + torch.rand(count, 1, dtype=torch.float64))


def make_views(features: Tensor, count: int, seed: int = 1) -> Tensor:
    """Views [N, V, D] of features [N, D], the first the feature itself."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(features), count, features.shape[1], generator=generator, dtype=torch.float64)
    noise[:, 0] = 0
    return features.unsqueeze(1) + 0.6 * noise


def make_method(spec: str, prototypes: Tensor, scale: float = SCALE) -> lmr.Method:
    return lmr.create(spec, lmr.ZeroShot(nn.Identity(), prototypes, scale, input_shape=prototypes.shape[1:]))


def unit(row: Tensor) -> Tensor:
    return row / row.square().sum().sqrt()
