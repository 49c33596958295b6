"""Tensors of a state: moved to another type, and checked against a range."""

from __future__ import annotations

import torch
from torch import Tensor


def convert_tensor(value: Tensor, like: Tensor) -> Tensor:
    """A tensor of a state on another device and in another type. What is the largest number of its type stays so."""
    moved = value.to(like.device, like.dtype)
    if value.dtype == like.dtype or not value.is_floating_point():
        return moved
    before, after = torch.finfo(value.dtype).max, torch.finfo(like.dtype).max
    return moved.clamp_(-after, after).masked_fill_((value >= before).to(like.device), after)


def find_within(value: Tensor, low: float | None, high: float | None) -> Tensor:
    """Which rows of ``value`` [A, ...] are finite and from ``low`` to ``high``: bool [A]."""
    if not value[:1].numel():
        return torch.ones(len(value), dtype=torch.bool, device=value.device)
    info = torch.finfo(value.dtype) if value.is_floating_point() else torch.iinfo(value.dtype)
    smallest, largest = torch.aminmax(value.flatten(1) if value.ndim > 1 else value.unsqueeze(1), dim=1)
    return (smallest >= (info.min if low is None else low)) & (largest <= (info.max if high is None else high))
